#include "sim/cost/framework/framework_profile.h"

#include <algorithm>
#include <map>

#include "cluster/profile/profile_section.h"
#include "core/diagnostics.h"
#include "core/reader.h"

namespace sim {

namespace {

constexpr core::RealRange numbers = {.least = 0, .greatest = 1e12};
constexpr core::IntegerRange counts = {.least = 0, .greatest = 1'000'000};

using cluster::ProfileSection;

template <class Enum>
std::optional<Enum> read_choice(ProfileSection& section, const char* key,
                                std::initializer_list<Enum> choices) {
    std::vector<std::string> words;
    for (const Enum choice : choices) words.emplace_back(name_of(choice));
    section.figure(key);
    const std::optional<std::string> word = section.reader().optional_choice(key, words);
    for (const Enum choice : choices)
        if (word && *word == name_of(choice)) return choice;
    return std::nullopt;
}

std::optional<core::DataType> read_type(ProfileSection& section, const char* key) {
    using core::name_of;
    return read_choice(section, key, {core::DataType::fp32, core::DataType::bf16, core::DataType::fp16});
}

// A number by its key, into the field that a fact fills.
struct FactReader {
    ProfileSection& section;
    const FrameworkFact& fact;
    FrameworkFacts& values;

    template <class T, class Field>
    void take(std::optional<T> value, Field& field) const {
        if (!value) return;
        if constexpr (requires { value->value; }) refuse_zero(value->value);
        else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
            refuse_zero(static_cast<double>(*value));
        field = static_cast<Field>(*value);
    }
    void refuse_zero(double value) const {
        if (fact.is_positive && value == 0)
            section.reader().error(fact.key, section.reader().path_of(fact.key) + " is zero",
                                   "give a figure above zero, or leave the key out");
    }

    void operator()(bool FrameworkTraits::* field) const {
        take(section.boolean(fact.key), values.traits.*field);
    }
    void operator()(bool FrameworkMemory::* field) const {
        take(section.boolean(fact.key), values.memory.*field);
    }
    void operator()(int FrameworkTraits::* field) const {
        take(section.integer(fact.key, counts), values.traits.*field);
    }
    void operator()(double FrameworkTraits::* field) const {
        take(section.real(fact.key, numbers), values.traits.*field);
    }
    void operator()(double FrameworkMemory::* field) const {
        take(section.real(fact.key, numbers), values.memory.*field);
    }
    void operator()(core::Seconds FrameworkTraits::* field) const {
        take(section.seconds(fact.key), values.traits.*field);
    }
    void operator()(core::Bytes FrameworkTraits::* field) const {
        take(section.bytes(fact.key), values.traits.*field);
    }
    void operator()(core::Bytes FrameworkMemory::* field) const {
        take(section.bytes(fact.key), values.memory.*field);
    }
    void operator()(core::BytesPerSecond FrameworkTraits::* field) const {
        take(section.bytes_per_second(fact.key), values.traits.*field);
    }
    void operator()(AttentionKernel FrameworkTraits::* field) const {
        take(read_choice(section, fact.key,
                         {AttentionKernel::flash_1, AttentionKernel::flash_2, AttentionKernel::cudnn}),
             values.traits.*field);
    }
    void operator()(ImageLayout FrameworkTraits::* field) const {
        using enum ImageLayout;
        take(read_choice(section, fact.key, {channels_last, channels_first, channels_last_in_half}),
             values.traits.*field);
    }
    void operator()(model::AttentionImplementation FrameworkTraits::* field) const {
        using enum model::AttentionImplementation;
        take(read_choice(section, fact.key, {unfused, fused_softmax, flash}), values.traits.*field);
    }
    void operator()(std::optional<core::DataType> FrameworkTraits::* field) const {
        if (const std::optional<core::DataType> type = read_type(section, fact.key))
            values.traits.*field = type;
    }
};

// KEY = { constant = "NAME" }.
const NamedConstant* read_constant(const core::Value& value, const std::string& path,
                                   const FrameworkFact& fact, core::Diagnostics& diagnostics) {
    core::TableReader reader(value, path, diagnostics);
    const std::string name = reader.required_string("constant");
    reader.finish();
    if (name.empty()) return nullptr;
    const NamedConstant* constant = find_constant(name);
    if (constant == nullptr) {
        std::vector<std::string> names;
        for (const NamedConstant& known : named_constants()) names.emplace_back(known.name);
        const std::string near = core::did_you_mean(name, names);
        reader.error("constant",
                     path + ".constant = " + core::in_quotes(name) + " is no constant of the cost model",
                     near.empty() ? "known: " + core::list_in_words(names)
                                  : "did you mean " + core::in_quotes(near) + "?");
    } else if (!can_hold(fact, constant->unit)) {
        reader.error("constant",
                     path + ".constant = " + core::in_quotes(name) + " counts something else than this fact",
                     "the fact is: " + std::string(fact.meaning) +
                         "; the constant: " + std::string(constant->meaning));
        return nullptr;
    }
    return constant;
}

void state(FrameworkProfile& profile, FrameworkProfile::Statement statement) {
    const auto found = std::find_if(profile.statements.begin(), profile.statements.end(),
                                    [&](const auto& other) { return other.fact == statement.fact; });
    if (found == profile.statements.end()) profile.statements.push_back(std::move(statement));
    else *found = std::move(statement);
}

void read_section(const core::Value& table, const std::string& name, FrameworkProfile& profile,
                  core::Diagnostics& diagnostics) {
    const std::string path = profile.name + "." + name;
    std::map<std::string, cluster::Provenance> provenance;
    cluster::ProfileContext context{diagnostics, provenance, true};
    ProfileSection section(table, path, context);
    for (const FrameworkFact& fact : framework_facts()) {
        if (fact.section != name) continue;
        section.reader().ignore(fact.key);  // known, stated or not
        const core::Value* value = table.find(fact.key);
        if (value == nullptr) continue;
        FrameworkProfile::Statement statement{&fact, nullptr, {}, profile.name};
        if (value->is_table()) {
            statement.constant = read_constant(*value, section.reader().path_of(fact.key), fact, diagnostics);
            if (statement.constant == nullptr) continue;
        } else {
            std::visit(FactReader{section, fact, profile.values}, fact.field);
            const auto own = provenance.find(path + "." + fact.key);
            const auto around = provenance.find(path);
            if (own != provenance.end()) statement.provenance = own->second;
            else if (around != provenance.end()) statement.provenance = around->second;
        }
        state(profile, std::move(statement));
    }
    section.finish();
}

}  // namespace

FrameworkFacts FrameworkProfile::with(const CostConstants& constants) const {
    FrameworkFacts facts = values;
    for (const Statement& statement : statements)
        if (statement.constant != nullptr)
            fill(facts, *statement.fact, constants.*statement.constant->value, statement.constant->unit);
    facts.memory.fuses_accumulation = facts.traits.fuses_accumulation;
    facts.memory.recomputes_alternate_products = facts.traits.recomputes_alternate_products;
    facts.memory.keeps_full_parameters = facts.traits.keeps_full_parameters;
    return facts;
}

const FrameworkProfile::Statement* FrameworkProfile::statement_of(const FrameworkFact& fact) const {
    const auto found = std::find_if(statements.begin(), statements.end(),
                                    [&](const Statement& statement) { return statement.fact == &fact; });
    return found == statements.end() ? nullptr : &*found;
}

FrameworkProfile read_framework_profile(const core::Value& table, const FrameworkProfile* parent,
                                        core::Diagnostics& diagnostics) {
    FrameworkProfile profile = parent != nullptr ? *parent : FrameworkProfile{};
    core::TableReader reader(table, "profile", diagnostics);
    profile.name = reader.required_string("name");
    profile.title = reader.required_string("title");
    profile.versions = reader.required_string("versions");
    profile.extends = reader.optional_string("extends");
    profile.notes = reader.optional_strings("notes").value_or(std::vector<std::string>{});
    profile.file = table.location.file;
    profile.values.traits.title = profile.title;
    std::string section;
    for (const FrameworkFact& fact : framework_facts()) {
        if (section == fact.section) continue;
        section = fact.section;
        if (const core::Value* facts = reader.optional_table(section))
            read_section(*facts, section, profile, diagnostics);
    }
    reader.finish();
    return profile;
}

}  // namespace sim
