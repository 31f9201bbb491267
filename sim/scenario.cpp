#include "sim/scenario.h"

#include <algorithm>
#include <cctype>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "sim/cost/framework/framework_catalogue.h"

namespace sim {

namespace {

using core::Value;

const std::vector<std::string>& sections() {
    static const std::vector<std::string> names = {"model",      "cluster",    "plan", "training",
                                                   "prediction", "provenance", "job",  "campaign"};
    return names;
}

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

std::string resolved(const std::string& reference, const std::string& directory) {
    return directory.empty() || reference.starts_with('/') ? reference : directory + "/" + reference;
}

void remove_member(Value& table, std::string_view key) {
    auto& members = table.members();
    members.erase(std::remove_if(members.begin(), members.end(),
                                 [&](const auto& member) { return member.first == key; }),
                  members.end());
}

// Tables are merged member by member, everything else is replaced.
void merge(Value& target, const Value& changes) {
    for (const auto& [key, value] : changes.members()) {
        Value* present = target.find(key);
        if (present && present->is_table() && value.is_table()) merge(*present, value);
        else target[key] = value;
    }
}

void place(Value& value, const core::SourceLocation& location) {
    value.location = location;
    value.key_location = location;
    if (value.is_array())
        for (Value& item : value.items()) place(item, location);
    if (value.is_table())
        for (auto& member : value.members()) place(member.second, location);
}

std::string trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
    return std::string(text);
}

bool may_be_bare(std::string_view text) {
    constexpr std::string_view opening = "\"'[{";
    return !text.empty() && opening.find(text.front()) == std::string_view::npos &&
           std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

std::optional<Value> parse_value(const std::string& text, const core::SourceLocation& location,
                                 const std::string& key, core::Diagnostics& diagnostics) {
    core::Diagnostics attempt;
    std::optional<Value> document = core::parse_toml("value = " + text, location.file, attempt);
    Value value;
    if (document && !attempt.has_errors() && document->size() == 1 && document->find("value")) {
        value = *document->find("value");
    } else if (may_be_bare(text)) {
        value = Value(text);
    } else {
        diagnostics.error(location, key,
                          "the value " + core::in_quotes(text) + " of '" + key + "' is no TOML value",
                          "numbers, true, \"text\", [lists] and bare words are values");
        return std::nullopt;
    }
    place(value, location);
    return value;
}

bool is_dotted_key(std::string_view key) {
    if (key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != std::string_view::npos)
        return false;
    return std::all_of(key.begin(), key.end(),
                       [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

struct Split {
    std::string key, text;
};
std::optional<Split> split_assignment(std::string_view text, const std::string& option,
                                      core::Diagnostics& diagnostics,
                                      const std::string& example = "plan.micro_batch=2") {
    const std::size_t equals = text.find('=');
    Split split{equals == std::string_view::npos ? std::string() : trimmed(text.substr(0, equals)),
                equals == std::string_view::npos ? std::string() : trimmed(text.substr(equals + 1))};
    if (!is_dotted_key(split.key) || split.text.empty()) {
        diagnostics.error({"command line", 0, 0}, option,
                          option + " " + core::in_quotes(text) + " is not of the form key=value",
                          "for example " + option + " " + example);
        return std::nullopt;
    }
    return split;
}

}  // namespace

std::optional<Value> load_scenario_document(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<Value> document = core::load_document(path, diagnostics);
    return document ? resolve_scenario_document(*document, path, diagnostics) : std::nullopt;
}

std::optional<Value> resolve_scenario_document(const Value& given, const std::string& path,
                                               core::Diagnostics& diagnostics) {
    std::optional<Value> document = given;
    if (!document->is_table()) {
        diagnostics.error(document->location, "", "a scenario is a table of keys", "see docs/formats.md");
        return std::nullopt;
    }
    if (const Value* reference = document->find("plan"); reference && reference->is_string()) {
        const std::string plan_path = resolved(reference->string(), directory_of(path));
        std::optional<Value> base = core::load_document(plan_path, diagnostics, reference->location, "plan");
        if (!base) return std::nullopt;
        if (!base->is_table() || (base->find("plan") && !base->find("plan")->is_table())) {
            diagnostics.error(reference->location, "plan", core::in_quotes(plan_path) + " is no plan file",
                              "it needs a [plan] table");
            return std::nullopt;
        }
        // What is predicted is predicted anew.
        remove_member(*base, "prediction");
        for (auto& [key, value] : document->members())
            if (key != "plan") (*base)[key] = value;
        base->location = document->location;
        document = std::move(base);
    }
    if (const Value* changes = document->find("what_if")) {
        if (!changes->is_table()) {
            diagnostics.error(changes->location, "what_if", "what_if is a table",
                              "write [what_if.cluster], [what_if.plan], ... with the keys to change");
            return std::nullopt;
        }
        const Value kept = *changes;
        for (const auto& [section, value] : kept.members()) {
            const bool is_known =
                std::find(sections().begin(), sections().end(), section) != sections().end();
            if (is_known && value.is_table()) continue;
            const std::string near = core::did_you_mean(section, sections());
            diagnostics.error(
                value.key_location, "what_if." + section,
                is_known ? "what_if." + section + " is a table" : "unknown section what_if." + section,
                near.empty()
                    ? "write [what_if.model], [what_if.cluster], [what_if.plan] or [what_if.training]"
                    : "did you mean [what_if." + near + "]?");
        }
        if (diagnostics.has_errors()) return std::nullopt;
        remove_member(*document, "what_if");
        merge(*document, kept);
    }
    return document;
}

std::optional<Assignment> parse_assignment(std::string_view text, const std::string& option,
                                           core::Diagnostics& diagnostics, const std::string& example) {
    const std::optional<Split> split = split_assignment(text, option, diagnostics, example);
    if (!split) return std::nullopt;
    std::optional<Value> value = parse_value(split->text, {"command line", 0, 0}, split->key, diagnostics);
    if (!value) return std::nullopt;
    return Assignment{split->key, std::move(*value), split->text};
}

std::vector<Assignment> parse_sweep(std::string_view text, const std::string& option,
                                    core::Diagnostics& diagnostics) {
    const std::optional<Split> split = split_assignment(text, option, diagnostics);
    if (!split) return {};
    std::vector<std::string> items(1);
    int depth = 0;
    char quote = 0;
    for (char c : split->text) {
        if (quote) quote = c == quote ? 0 : quote;
        else if (c == '"' || c == '\'') quote = c;
        else if (c == '[' || c == '{') ++depth;
        else if (c == ']' || c == '}') --depth;
        if (c == ',' && depth == 0 && !quote) items.emplace_back();
        else items.back() += c;
    }
    std::vector<Assignment> result;
    for (const std::string& item : items) {
        const std::string value_text = trimmed(item);
        if (value_text.empty()) {
            diagnostics.error({"command line", 0, 0}, split->key,
                              option + " " + core::in_quotes(text) + " has an empty value",
                              "for example " + option + " plan.micro_batch=1,2,4");
            return {};
        }
        std::optional<Value> value = parse_value(value_text, {"command line", 0, 0}, split->key, diagnostics);
        if (!value) return {};
        result.push_back({split->key, std::move(*value), value_text});
    }
    return result;
}

void assign(Value& document, const Assignment& assignment, core::Diagnostics& diagnostics) {
    const core::SourceLocation location{"command line", 0, 0};
    const std::string section = assignment.key.substr(0, assignment.key.find('.'));
    const bool is_known = std::find(sections().begin(), sections().end(), section) != sections().end();
    if (!is_known || section == assignment.key) {
        const std::string near = core::did_you_mean(section, sections());
        const std::string known = "keys start with " + core::list_in_words(sections()) +
                                  " and name one of its members, as plan.micro_batch does";
        std::string hint = known;
        if (!is_known && section == assignment.key)
            hint = "did you mean plan." + assignment.key + "? " + known;
        else if (!is_known && !near.empty())
            hint = "did you mean " + near + assignment.key.substr(section.size()) + "?";
        diagnostics.error(
            location, assignment.key,
            is_known ? "'" + assignment.key + "' is a whole section" : "unknown key '" + assignment.key + "'",
            hint);
        return;
    }
    Value* at = &document;
    std::size_t begin = 0;
    while (true) {
        const std::size_t end = assignment.key.find('.', begin);
        const std::string part = assignment.key.substr(begin, end == std::string::npos ? end : end - begin);
        const bool is_last = end == std::string::npos;
        if (Value* present = at->find(part)) {
            if (is_last) {
                *present = assignment.value;
                return;
            }
            if (!present->is_table()) {
                diagnostics.error(location, assignment.key,
                                  "'" + assignment.key.substr(0, end) + "' is " +
                                      std::string(core::name_of(present->kind())) + ", not a table",
                                  "it has no key of its own to set");
                return;
            }
            at = present;
        } else {
            Value& made = (*at)[part];
            if (is_last) {
                made = assignment.value;
                return;
            }
            made = Value::table();
            made.location = made.key_location = location;
            at = &made;
        }
        begin = end + 1;
    }
}

namespace {

// A precision without a peak on the device is refused at the key that asks for it, or at the plan when it is
// the default.
void check_precision(const schedule::Plan& plan, const cluster::DeviceSpec& device, const Value& document,
                     bool emulates_half, core::Diagnostics& diagnostics) {
    if (device.peak.contains(plan.precision.compute)) return;
    const core::DataType stored = plan.precision.activations();
    const bool is_emulated =
        device.architecture == "cpu" && (stored == core::DataType::bf16 || stored == core::DataType::fp16);
    if (is_emulated && emulates_half) return;
    const Value* table = document.find("plan");
    const Value* written = table == nullptr ? nullptr : table->find("precision");
    std::vector<std::string> known;
    for (const auto& [type, peak] : device.peak) known.emplace_back(core::name_of(type));
    diagnostics.error(
        written != nullptr ? written->location
        : table != nullptr ? table->location
                           : core::SourceLocation{},
        "plan.precision",
        "precision = " + std::string(core::name_of(plan.precision.compute)) + ": " + device.name +
            " has no figure for it",
        "use " + core::list_in_words(known) + "; an unknown rate is refused, not guessed" +
            (is_emulated ? " (smexec emulates " + std::string(core::name_of(plan.precision.compute)) +
                               " here, and measures it)"
                         : std::string()));
}

}  // namespace

std::optional<Scenario> read_scenario(const Value& document, const std::string& path,
                                      core::Diagnostics& diagnostics, bool emulates_half) {
    Scenario scenario;
    scenario.path = path;
    Value rest = document;
    if (const Value* question = document.find("question")) {
        if (question->is_string()) scenario.question = question->string();
        else
            diagnostics.error(question->location, "question", "question is a text",
                              "write question = \"...\"");
        remove_member(rest, "question");
    }
    // What is about more than one step: jobs/ reads it.
    for (const char* section : {"job", "campaign"})
        if (rest.find(section) != nullptr) remove_member(rest, section);
    std::optional<schedule::PlanFile> file = schedule::read_plan_file(rest, path, diagnostics);

    // Model and cluster are read even when the plan is wrong, so that one run tells all there is to correct.
    const auto directory = [&](const Value& table) {
        return table.location.file.empty() || table.location.file == "command line"
                   ? directory_of(path)
                   : directory_of(table.location.file);
    };
    std::optional<model::ModelGraph> graph;
    std::optional<cluster::Cluster> machines;
    if (const Value* table = document.find("model"); table != nullptr && table->is_table()) {
        model::LoadOptions model_options;
        model_options.directory = directory(*table);
        graph = model::load_model(*table, model_options, diagnostics);
    }
    if (const Value* table = document.find("cluster"); table != nullptr && table->is_table())
        machines = cluster::load_cluster(*table, diagnostics, directory(*table));
    if (file) {
        const Value* plan = document.find("plan");
        const Value* framework = plan == nullptr ? nullptr : plan->find("framework");
        check_framework(file->plan.framework, diagnostics,
                        framework == nullptr ? core::SourceLocation{} : framework->location);
    }
    if (!file || !graph || !machines || diagnostics.has_errors()) return std::nullopt;
    scenario.file = std::move(*file);
    check_precision(scenario.file.plan, machines->instance.device, document, emulates_half, diagnostics);
    // CPU ranks may outnumber the cores: they share them.
    const int devices = machines->instance.device.has_concurrent_streams
                            ? machines->device_count()
                            : std::max(machines->device_count(), scenario.file.plan.layout.ranks());
    schedule::check_plan(scenario.file.plan, *graph, devices, document.find("plan"), diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    scenario.graph = std::move(*graph);
    scenario.cluster = std::move(*machines);
    return scenario;
}

}  // namespace sim
