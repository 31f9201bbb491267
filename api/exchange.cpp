#include "api/exchange.h"

#include <filesystem>
#include <utility>

#include <fmt/core.h>

#include "api/version.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/exchange.h"

namespace api {

namespace {

core::Value warnings_of(const core::Diagnostics& diagnostics) {
    const core::Value all = core::to_value(diagnostics);
    const core::Value* warnings = all.find("warnings");
    return warnings != nullptr ? *warnings : core::Value::array();
}

// Names of the targets that can be written, or read.
std::vector<std::string> target_names(bool to_read) {
    std::vector<std::string> names;
    for (const interop::ExchangeTarget& target : interop::exchange_targets())
        if (to_read ? target.read != nullptr : target.write != nullptr) names.push_back(target.name);
    return names;
}

// The one file and the target; null when something is amiss.
const interop::ExchangeTarget* read_request(Options& options, const char* direction, bool to_read) {
    options.only_positional("FILE", "file", to_read ? "name the file to import" : "name the plan to export");
    const std::vector<std::string> names = target_names(to_read);
    if (!options.has(direction))
        options.error(direction, fmt::format("{} is missing", direction),
                      "use " + core::list_in_words(names));
    const auto name = options.choice(direction, names);
    return name ? interop::find_exchange_target(*name) : nullptr;
}

void check_checkpoint_options(Options& options, const interop::ExchangeTarget& target) {
    if (options.has("--every") && !options.has("--checkpoint"))
        options.error("--every", "--every needs --checkpoint", "name the folder of checkpoints too");
    if (!options.has("--checkpoint")) return;
    if (!target.framework.empty())
        options.error("--checkpoint", fmt::format("{} starts no smexec", target.name),
                      "it is of launchers: torchrun, mpirun, slurm, kubernetes, skypilot");
    else if (options.has("--command"))
        options.error("--checkpoint", "--checkpoint is smexec's, and --command starts another program",
                      "give that program its own options in --command");
}

// "out/plan.json" and "estimator.json": "out/plan.estimator.json".
std::string companion_path(const std::string& out, const std::string& name) {
    const std::filesystem::path path(out);
    return (path.parent_path() / (path.stem().string() + "." + name)).string();
}

core::Value document_of(const interop::ExchangeTarget& target, const interop::Export& result,
                        const core::Diagnostics& diagnostics) {
    core::Value document, companions = core::Value::array();
    document["target"] = target.name;
    document["text"] = result.text;
    for (const interop::ExportedFile& file : result.companions) {
        core::Value companion;
        companion["name"] = file.name;
        companion["text"] = file.text;
        companions.append(std::move(companion));
    }
    document["companions"] = std::move(companions);
    document["notes"] = result.notes;
    document["warnings"] = warnings_of(diagnostics);
    return document;
}

std::vector<OutputFile> files_of(const std::string& path, const interop::Export& result) {
    std::vector<OutputFile> files = {{path, result.text}};
    for (const interop::ExportedFile& companion : result.companions) {
        const std::string beside = companion_path(path, companion.name);
        files.push_back({beside, companion.text});
    }
    return files;
}

}  // namespace

OptionNames export_options() {
    return {{"--to", "--out", "--script", "--command", "--checkpoint", "--every"},
            {"--tensorflow", "--json", "--help"}};
}

Reply export_plan(const std::vector<std::string>& arguments) {
    Reply reply;
    core::Diagnostics& diagnostics = reply.diagnostics;
    Options options(arguments, export_options(), diagnostics);
    const interop::ExchangeTarget* target = read_request(options, "--to", false);
    const auto path = options.text("--out");
    if (path) check_output("--out", *path, diagnostics);
    if (target) check_checkpoint_options(options, *target);
    const std::optional<std::int64_t> every = options.integer("--every", 1, 1 << 30);
    if (diagnostics.has_errors()) return refusal(std::move(diagnostics));
    const interop::ExportOptions request{options.text("--command").value_or(""),
                                         options.text("--script").value_or(""), options.has("--tensorflow"),
                                         options.text("--checkpoint").value_or(""), every};
    const auto source = interop::load_export_source(options.positional().front(), diagnostics);
    const auto result = source ? target->write(*source, request, diagnostics) : std::nullopt;
    if (!result) return refusal(std::move(diagnostics));
    reply.document = document_of(*target, *result, diagnostics);
    if (path) {
        reply.files = files_of(*path, *result);
        return reply;
    }
    reply.text = result->text;
    reply.is_file = true;
    if (result->companions.empty()) return reply;
    std::string names;
    for (const interop::ExportedFile& companion : result->companions)
        names += (names.empty() ? "" : ", ") + companion.name;
    diagnostics.warning({}, "--out", "not shown: " + names, "give --out FILE to have them written beside it");
    return reply;
}

const std::vector<std::string>& import_option_names() {
    static const std::vector<std::string> names = {
        "--from", "--model", "--seq-len", "--instance", "--nodes", "--processes-per-node", "--micro-batch"};
    return names;
}

std::optional<schedule::PlanFile> read_other_tool(Options& options, core::Diagnostics& diagnostics) {
    const interop::ExchangeTarget* target = read_request(options, "--from", true);
    interop::ImportOptions request;
    request.model = options.text("--model").value_or("");
    request.instance = options.text("--instance").value_or("");
    request.sequence_length = options.integer("--seq-len", 1, 1 << 28);
    request.nodes = options.integer("--nodes", 1, 1 << 16);
    request.processes_per_node = options.integer("--processes-per-node", 1, 1024);
    request.micro_batch = options.integer("--micro-batch", 1, 1 << 20);
    if (diagnostics.has_errors()) return std::nullopt;
    const std::string& file = options.positional().front();
    const auto text = core::read_file(file, diagnostics);
    auto plan = text ? target->read(*text, file, request, diagnostics) : std::nullopt;
    if (!plan) return std::nullopt;
    plan->provenance = core::Value::table();
    plan->provenance["tool"] = "smplan import";
    plan->provenance["version"] = version;
    plan->provenance["source"] =
        fmt::format("{} ({})", std::filesystem::path(file).filename().string(), target->name);
    return plan;
}

OptionNames import_options() {
    OptionNames names{.with_value = import_option_names(), .flags = {"--json", "--help"}};
    names.with_value.push_back("--out");
    return names;
}

Reply import_plan(const std::vector<std::string>& arguments) {
    Reply reply;
    Options options(arguments, import_options(), reply.diagnostics);
    const auto path = options.text("--out");
    if (path) check_output("--out", *path, reply.diagnostics);
    const std::optional<schedule::PlanFile> plan = read_other_tool(options, reply.diagnostics);
    if (!plan) return refusal(std::move(reply.diagnostics));
    const std::string toml = schedule::write_plan_file(*plan);
    reply.document["target"] = *options.text("--from");
    reply.document["text"] = toml;
    core::Diagnostics ignored;
    if (const auto parsed = core::parse_toml(toml, "plan.toml", ignored)) reply.document["plan"] = *parsed;
    reply.document["warnings"] = warnings_of(reply.diagnostics);
    if (path) reply.files.push_back({*path, toml});
    else reply.text = toml, reply.is_file = true;
    return reply;
}

}  // namespace api
