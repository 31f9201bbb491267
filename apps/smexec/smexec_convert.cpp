#include "apps/smexec/smexec_convert.h"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smexec/smexec_job.h"
#include "apps/smexec/smexec_tokens.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "exec/checkpoint/checkpoint_conversion.h"
#include "exec/checkpoint/training_state.h"
#include "exec/weights/weight_export.h"
#include "sim/scenario.h"

namespace apps {

namespace {

namespace fs = std::filesystem;

const char* const help =
    "Usage: smexec convert CHECKPOINT --plan PLAN.toml --out DIR [--from-step N] [--json]\n"
    "       smexec convert TEXTS.jsonl --to tokens --tokenizer FILE.model|bytes --out FILE.bin [--field "
    "text]\n"
    "\n"
    "Writes a checkpoint as another plan of the same model would have written it: other degrees of pipeline, "
    "data, tensor or expert parallelism, another partition,\n"
    "another sharding. Parameters and the optimizer's state are the same numbers, divided otherwise; steps, "
    "samples, seed and losses stay.\n"
    "(smexec PLAN.toml --resume also takes the checkpoint of another plan as it is; converted, each rank "
    "reads a file of its own size.)\n"
    "\n"
    "  CHECKPOINT           the folder of --checkpoint, or one step-N folder in it\n"
    "  --plan PLAN.toml     the plan that will go on from it\n"
    "  --out DIR            where to write; must have no checkpoint yet\n"
    "  --to FORMAT          checkpoint (the default), or the parameters alone, in fp32, as one file that "
    "PyTorch reads: hf, with the names of\n"
    "                       Hugging Face's transformers, or safetensors, with ours; --out is then "
    "FILE.safetensors or a folder that gets\n"
    "                       model.safetensors, and PLAN.toml any plan of the model\n"
    "  --from-step N        that of step N instead of the newest\n"
    "\n"
    "--to tokens makes training data of texts: the field \"text\" (--field) of each line's JSON, or a file "
    "that "
    "is no .jsonl as one text, by a model of\n"
    "SentencePiece (tokenizer.model) or as bytes. FILE.bin has llm.c's header and 16 bits a token, or 32 "
    "where "
    "the vocabulary needs them.\n"
    "\n"
    "Example:\n"
    "  smexec convert checkpoints --plan tensor2.toml --out converted\n"
    "  smexec tensor2.toml --checkpoint converted --resume --steps 400\n"
    "  smexec convert checkpoints --plan tensor2.toml --to hf --out llama/model.safetensors\n";

// "DIR/step-00000040" is the checkpoint of step 40 in DIR.
void take_step_from_name(std::string& folder, std::optional<std::int64_t>& step) {
    fs::path path(folder);
    if (path.filename().empty()) path = path.parent_path();
    step = exec::step_of_folder(path.filename().string());
    if (step) folder = path.has_parent_path() ? path.parent_path().string() : ".";
}

// What the plan and the checkpoint must have in common.
void compare(const exec::Checkpoint& checkpoint, const sim::Scenario& scenario,
             const schedule::Program& program, core::Diagnostics& diagnostics) {
    const exec::CheckpointManifest& manifest = checkpoint.manifest();
    const auto refuse = [&](std::string message, const char* hint) {
        diagnostics.error({}, "--plan", std::move(message), hint);
    };
    if (manifest.model_hash != program.model_hash)
        return refuse(fmt::format("the checkpoint of step {} is of {}, the plan of another model: {}",
                                  manifest.step, manifest.model, scenario.graph.name),
                      "give a plan of the model that was trained");
    if (manifest.seed != scenario.file.training.seed)
        refuse(fmt::format("the checkpoint was trained with seed {}, the plan says {}", manifest.seed,
                           scenario.file.training.seed),
               "set training.seed to the checkpoint's");
    if (!schedule::trains(program))
        return refuse("the plan only evaluates: the optimizer's state would be lost",
                      "give a plan that trains");
    const exec::StateDifference difference = exec::state_difference(checkpoint, program.plan, scenario.graph);
    const std::string_view optimizer = schedule::name_of(program.plan.optimizer.kind);
    if (!difference.missing.empty())
        refuse(fmt::format("the checkpoint of step {} has no {}, which {} needs", manifest.step,
                           difference.missing, optimizer),
               "give the plan the optimizer that was trained with");
    if (!difference.beyond.empty())
        refuse(fmt::format("the checkpoint of step {} has {}, which {} does not keep: they would be lost",
                           manifest.step, difference.beyond, optimizer),
               "give the plan the optimizer that was trained with");
}

// Where the file of --to hf and --to safetensors is to be: a folder, and its name in it.
std::pair<std::string, std::string> place_of_weights(const std::string& target) {
    if (!target.ends_with(".safetensors")) return {target, "model.safetensors"};
    const fs::path path(target);
    return {path.has_parent_path() ? path.parent_path().string() : ".", path.filename().string()};
}

int write_weights(const exec::Checkpoint& checkpoint, const sim::Scenario& scenario, bool has_their_names,
                  const std::string& target, bool as_json, core::Diagnostics& diagnostics, std::ostream& out,
                  std::ostream& err) {
    const exec::CheckpointManifest& manifest = checkpoint.manifest();
    const model::ModelGraph& graph = scenario.graph;
    if (manifest.model_hash != model::hash_of(graph))
        diagnostics.error({}, "--plan",
                          fmt::format("the checkpoint of step {} is of {}, the plan of another model: {}",
                                      manifest.step, manifest.model, graph.name),
                          "give a plan of the model that was trained");
    std::variant<exec::WeightNames, core::Unsupported> names = exec::own_names(graph);
    if (has_their_names) names = exec::huggingface_names(graph);
    if (const auto* unsupported = std::get_if<core::Unsupported>(&names))
        diagnostics.error(
            {}, "--to",
            fmt::format("Hugging Face's names are not known for this model: {}", unsupported->reason),
            "--to safetensors writes our own names");
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const auto [folder, name] = place_of_weights(target);
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw core::MachineError(fmt::format("creating {}: {}", folder, error.message()));
    const std::uint64_t bytes =
        exec::export_weights(checkpoint, graph, std::get<exec::WeightNames>(names), folder, name);
    if (as_json) {
        core::Value value = core::Value::table();
        value["weights"] = folder + "/" + name;
        value["step"] = manifest.step;
        value["model"] = manifest.model;
        value["from"] = manifest.plan;
        value["bytes"] = static_cast<std::int64_t>(bytes);
        out << core::to_json(value) << '\n';
        return good;
    }
    show(diagnostics, false, out, err);
    out << fmt::format("{}/{}: weights of {} at step {}, {}\n", folder, name, manifest.model, manifest.step,
                       core::format(core::Bytes(static_cast<double>(bytes))));
    return good;
}

}  // namespace

int run_smexec_convert(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << help;
        return good;
    }
    if (asks_for_tokens(arguments)) return run_smexec_tokens(arguments, out, err);
    core::Diagnostics diagnostics;
    Options options(arguments, {{"--plan", "--out", "--from-step", "--to"}, {"--json", "--help"}},
                    diagnostics);
    std::string folder =
        options.only_positional("CHECKPOINT", "checkpoint", "smexec convert --help shows an example");
    for (const char* needed : {"--plan", "--out"})
        if (!options.has(needed))
            options.error(needed, fmt::format("{} is missing", needed),
                          "smexec convert --help shows an example");
    std::optional<std::int64_t> step = options.integer("--from-step", 0, 1000000000);
    const std::string format =
        options.choice("--to", {"checkpoint", "hf", "safetensors"}).value_or("checkpoint");
    const bool writes_checkpoint = format == "checkpoint";
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    if (!step) take_step_from_name(folder, step);
    const std::string plan_path = *options.text("--plan"), target = *options.text("--out");
    std::error_code none;
    if (fs::equivalent(folder, target, none))
        options.error("--out", "--out is the folder of the checkpoint itself", "name another one");
    else if (writes_checkpoint && fs::exists(target, none) && !fs::is_directory(target, none))
        options.error("--out", fmt::format("{} is no folder", core::in_quotes(target)), "name a new one");
    else if (const std::vector<std::int64_t> steps = exec::committed_steps(target);
             writes_checkpoint && !steps.empty())
        options.error(
            "--out",
            fmt::format("{} has a checkpoint of step {} already", core::in_quotes(target), steps.back()),
            "name an empty or a new folder");
    const std::shared_ptr<const exec::Checkpoint> checkpoint =
        exec::Checkpoint::open(folder, step, diagnostics, false);
    const std::optional<core::Value> document = sim::load_scenario_document(plan_path, diagnostics);
    std::optional<sim::Scenario> scenario =
        document ? sim::read_scenario(*document, plan_path, diagnostics, true) : std::nullopt;
    if (diagnostics.has_errors() || !scenario || !checkpoint) return show(diagnostics, as_json, out, err);
    if (!writes_checkpoint)
        return write_weights(*checkpoint, *scenario, format == "hf", target, as_json, diagnostics, out, err);
    schedule::Program program;
    std::vector<std::string> remarks;
    if (!lower_plan(*scenario, scenario->cluster, program, remarks, diagnostics))
        return show(diagnostics, as_json, out, err);
    compare(*checkpoint, *scenario, program, diagnostics);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    const exec::CheckpointManifest written =
        exec::convert_checkpoint(*checkpoint, program, scenario->graph, target);
    const std::string place = exec::checkpoint_folder(target, written.step);
    std::uint64_t bytes = 0;
    for (const exec::CheckpointFile& file : written.files) bytes += file.bytes;
    if (as_json) {
        core::Value value = core::Value::table();
        value["checkpoint"] = place;
        value["step"] = written.step;
        value["model"] = written.model;
        value["from"] = checkpoint->manifest().plan;
        value["to"] = written.plan;
        value["files"] = std::ssize(written.files);
        value["bytes"] = static_cast<std::int64_t>(bytes);
        out << core::to_json(value) << '\n';
        return good;
    }
    show(diagnostics, false, out, err);
    out << fmt::format("{}: step {} of {}\n  {} files of {}\n  {} files of {}, {}\n", place, written.step,
                       written.model, checkpoint->manifest().files.size(), checkpoint->manifest().plan,
                       written.files.size(), written.plan,
                       core::format(core::Bytes(static_cast<double>(bytes))));
    return good;
}

}  // namespace apps
