#include "sim/cost/framework/describe_framework.h"

#include <fmt/core.h>

#include <algorithm>

namespace sim {

namespace {

std::string origin_of(const FrameworkProfile::Statement& statement) {
    if (statement.constant != nullptr)
        return fmt::format("constant {}: {}", statement.constant->name, statement.constant->source);
    const cluster::Provenance& provenance = statement.provenance;
    return provenance.source + " (" + provenance.date +
           (provenance.confidence.empty() ? "" : ", " + provenance.confidence) + ")";
}

}  // namespace

std::string describe_list(const FrameworkCatalogue& catalogue) {
    std::size_t widest = 0;
    for (const FrameworkProfile& profile : catalogue.profiles())
        widest = std::max(widest, profile.name.size());
    std::string text;
    for (const FrameworkProfile& profile : catalogue.profiles())
        text += fmt::format("{:<{}}  {:<{}}  {}\n", profile.name, widest, profile.extends.value_or("-"),
                            widest, profile.versions);
    return fmt::format("{:<{}}  {:<{}}  {}\n", "profile", widest, "extends", widest, "versions") + text;
}

core::Value list_to_value(const FrameworkCatalogue& catalogue) {
    core::Value list = core::Value::array();
    for (const FrameworkProfile& profile : catalogue.profiles()) {
        core::Value one;
        one["name"] = profile.name;
        one["title"] = profile.title;
        one["versions"] = profile.versions;
        one["extends"] = profile.extends ? core::Value(*profile.extends) : core::Value();
        list.append(std::move(one));
    }
    core::Value document;
    document["frameworks"] = std::move(list);
    return document;
}

std::string describe(const FrameworkProfile& profile) {
    std::string text = fmt::format("{}: {}, {}\n", profile.name, profile.title, profile.versions);
    if (profile.extends) text += fmt::format("extends {}\n", *profile.extends);
    text += fmt::format("file {}\n", profile.file);
    for (const std::string& note : profile.notes) text += fmt::format("note: {}\n", note);
    const FrameworkFacts facts = profile.with({});
    std::string unstated;
    for (const FrameworkFact& fact : framework_facts()) {
        const std::string key = fmt::format("{}.{}", fact.section, fact.key);
        const FrameworkProfile::Statement* statement = profile.statement_of(fact);
        if (statement == nullptr) {
            unstated += fmt::format("  {} = {}\n", key, value_in_words(facts, fact));
            continue;
        }
        text += fmt::format("\n{} = {}\n  {}\n  {}\n", key, value_in_words(facts, fact), fact.meaning,
                            origin_of(*statement));
        if (statement->profile != profile.name) text += fmt::format("  stated by {}\n", statement->profile);
    }
    return text + "\nnot stated, taken as\n" + unstated;
}

core::Value describe_to_value(const FrameworkProfile& profile) {
    core::Value document;
    document["name"] = profile.name;
    document["title"] = profile.title;
    document["versions"] = profile.versions;
    document["extends"] = profile.extends ? core::Value(*profile.extends) : core::Value();
    document["file"] = profile.file;
    document["notes"] = profile.notes;
    const FrameworkFacts facts = profile.with({});
    core::Value list = core::Value::array();
    for (const FrameworkFact& fact : framework_facts()) {
        core::Value one;
        one["section"] = fact.section;
        one["key"] = fact.key;
        one["value"] = value_in_words(facts, fact);
        one["meaning"] = fact.meaning;
        const FrameworkProfile::Statement* statement = profile.statement_of(fact);
        one["profile"] = statement != nullptr ? core::Value(statement->profile) : core::Value();
        if (statement != nullptr && statement->constant != nullptr) {
            one["constant"] = statement->constant->name;
            one["source"] = statement->constant->source;
        } else if (statement != nullptr) {
            one["source"] = statement->provenance.source;
            one["date"] = statement->provenance.date;
            one["confidence"] = statement->provenance.confidence;
        }
        list.append(std::move(one));
    }
    document["facts"] = std::move(list);
    return document;
}

}  // namespace sim
