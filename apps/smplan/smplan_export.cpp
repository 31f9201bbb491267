#include "apps/smplan/smplan_export.h"

#include <filesystem>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/exchange.h"

namespace apps {

namespace {

const char* const export_help =
    "Usage: smplan export plan.toml --to TARGET [--out FILE] [--script FILE] [--command COMMAND] "
    "[--checkpoint DIR] [--every N]\n"
    "                     [--tensorflow] [--json]\n"
    "\n"
    "Writes a plan in another tool's words. What the target cannot express is an error that names it and "
    "what to change; what it leaves\n"
    "to the training script is a warning; what the plan does not say stands as REPLACE...\n"
    "\n"
    "  --to TARGET        sagemaker-smp-v1, sagemaker-smp-v2, sagemaker-smddp, megatron, megatron-bridge, "
    "deepspeed, "
    "torchtitan,\n"
    "                     accelerate, nemo, torchrun, mpirun, slurm, kubernetes or skypilot\n"
    "  --out FILE         write there, with companion files beside it (default: standard output, without "
    "companions)\n"
    "  --script FILE      the training script (sagemaker)\n"
    "  --command COMMAND  what every rank runs (launchers: torchrun to skypilot; default: smexec with "
    "the plan)\n"
    "  --checkpoint DIR   smexec keeps its checkpoints there, one every N steps with --every N, and goes on "
    "from them when it is\n"
    "                     started again; Slurm then requeues the job at its time limit, or when a rank or a "
    "node fails (launchers)\n"
    "  --tensorflow       Horovod instead of DistributedDataParallel (sagemaker-smp-v1)\n"
    "  --json             one JSON document: target, text, companions[], notes[], warnings[]\n"
    "\n"
    "Example:\n"
    "  smplan export scenarios/llama2_70b_p4d.toml --to megatron\n";

const char* const import_help =
    "Usage: smplan import FILE --from TARGET [--model MODEL] [--seq-len S] [--instance TYPE] [--nodes N] "
    "[--processes-per-node P]\n"
    "                     [--micro-batch B] [--out plan.toml] [--json]\n"
    "\n"
    "Reads another tool's file back into a plan. JSON and Python are accepted for SageMaker and DeepSpeed, a "
    "whole estimator call too.\n"
    "What the file does not hold comes from the options; what neither says is a placeholder and a warning.\n"
    "\n"
    "  --from TARGET          sagemaker-smp-v1, sagemaker-smp-v2, sagemaker-smddp, megatron, deepspeed or "
    "torchtitan\n"
    "  --model MODEL          catalogue name of the model; --seq-len S tokens a sample\n"
    "  --instance TYPE        instance type; --nodes N of them\n"
    "  --processes-per-node P ranks on each (default: the file's, or one a device)\n"
    "  --micro-batch B        samples of a micro-batch\n"
    "  --out plan.toml        write there (default: standard output)\n"
    "  --json                 one JSON document: target, plan (as in plan.toml), warnings[]\n"
    "\n"
    "Example:\n"
    "  smplan import distribution.json --from sagemaker-smp-v1 --model bert-large --instance p3.16xlarge "
    "--nodes 1\n";

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

// "out/plan.json" and "estimator.json": "out/plan.estimator.json".
std::string companion_path(const std::string& out, const std::string& name) {
    const std::filesystem::path path(out);
    return (path.parent_path() / (path.stem().string() + "." + name)).string();
}

core::Value export_document(const interop::ExchangeTarget& target, const interop::Export& written,
                            const core::Diagnostics& diagnostics) {
    core::Value document, companions = core::Value::array();
    document["target"] = target.name;
    document["text"] = written.text;
    for (const interop::ExportedFile& file : written.companions) {
        core::Value companion;
        companion["name"] = file.name;
        companion["text"] = file.text;
        companions.append(std::move(companion));
    }
    document["companions"] = std::move(companions);
    document["notes"] = written.notes;
    document["warnings"] = warnings_of(diagnostics);
    return document;
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

}  // namespace

int run_export_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments,
                    {{"--to", "--out", "--script", "--command", "--checkpoint", "--every"},
                     {"--tensorflow", "--json", "--help"}},
                    diagnostics);
    if (options.has("--help")) {
        out << export_help;
        return good;
    }
    const interop::ExchangeTarget* target = read_request(options, "--to", false);
    if (const auto path = options.text("--out")) check_output("--out", *path, diagnostics);
    if (target) check_checkpoint_options(options, *target);
    const std::optional<std::int64_t> every = options.integer("--every", 1, 1 << 30);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    interop::ExportOptions request{options.text("--command").value_or(""),
                                   options.text("--script").value_or(""), options.has("--tensorflow"),
                                   options.text("--checkpoint").value_or(""), every};
    const auto source = interop::load_export_source(options.positional().front(), diagnostics);
    const auto result = source ? target->write(*source, request, diagnostics) : std::nullopt;
    const auto path = options.text("--out");
    if (result && !path && !as_json && !result->companions.empty()) {
        std::string names;
        for (const interop::ExportedFile& companion : result->companions)
            names += (names.empty() ? "" : ", ") + companion.name;
        diagnostics.warning({}, "--out", "not shown: " + names,
                            "give --out FILE to have them written beside it");
    }
    if (!result || !as_json) show(diagnostics, as_json, out, err);
    if (!result) return wrong_input;
    if (path) {
        core::write_file_atomically(*path, result->text);
        for (const interop::ExportedFile& companion : result->companions)
            core::write_file_atomically(companion_path(*path, companion.name), companion.text);
    }
    if (as_json) {
        out << core::to_json(export_document(*target, *result, diagnostics));
        return good;
    }
    for (const std::string& note : result->notes) err << "note: " << note << '\n';
    if (!path) {
        out << result->text;
        return good;
    }
    out << "wrote " << *path << '\n';
    for (const interop::ExportedFile& companion : result->companions)
        out << "wrote " << companion_path(*path, companion.name) << '\n';
    return good;
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

int run_import_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    OptionNames names{.with_value = import_option_names(), .flags = {"--json", "--help"}};
    names.with_value.push_back("--out");
    Options options(arguments, names, diagnostics);
    if (options.has("--help")) {
        out << import_help;
        return good;
    }
    const auto path = options.text("--out");
    if (path) check_output("--out", *path, diagnostics);
    const std::optional<schedule::PlanFile> plan = read_other_tool(options, diagnostics);
    if (!plan || !as_json) show(diagnostics, as_json, out, err);
    if (!plan) return wrong_input;
    const std::string toml = schedule::write_plan_file(*plan);
    if (path) core::write_file_atomically(*path, toml);
    if (as_json) {
        core::Value document;
        document["target"] = *options.text("--from");
        document["text"] = toml;
        core::Diagnostics ignored;
        if (const auto parsed = core::parse_toml(toml, "plan.toml", ignored)) document["plan"] = *parsed;
        document["warnings"] = warnings_of(diagnostics);
        out << core::to_json(document);
    } else if (path) {
        out << "wrote " << *path << '\n';
    } else {
        out << toml;
    }
    return good;
}

}  // namespace apps
