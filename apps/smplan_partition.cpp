#include "apps/smplan_partition.h"

#include <sys/resource.h>

#include <chrono>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "core/document.h"
#include "planner/placement.h"
#include "planner/reader/dnn_partitioning.h"
#include "planner/reader/piper.h"
#include "planner/replicated_placement.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smplan partition --graph FILE [--format FORMAT] [--devices K] [--cpus L] [--memory BYTES] [--micro-batches N]\n"
    "                        [--bandwidth B] [--non-contiguous] [--time-limit S] [--json]\n"
    "\n"
    "Places a costed graph on devices so that the largest stage load is least, and proves it: exact search with a lower bound.\n"
    "\n"
    "  --graph FILE       the graph with its costs\n"
    "  --format FORMAT    dnn-partitioning (default) or piper\n"
    "  --devices K        accelerators (default: the file's)\n"
    "  --cpus L           CPU devices (dnn-partitioning; default: the file's)\n"
    "  --memory BYTES     of one accelerator, as a number or \"16GiB\" (default: the file's)\n"
    "  --micro-batches N  in a batch (piper; default: the file's)\n"
    "  --bandwidth B      bytes per second, as a number or \"25GiB/s\" (piper; default: the file's)\n"
    "  --non-contiguous   stages need not be contiguous (dnn-partitioning): local search, with a lower bound\n"
    "  --time-limit S     stop after S seconds with the best so far and its gap\n"
    "  --json             one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no placement exists, with the reason.\n"
    "\n"
    "Example:\n"
    "  smplan partition --graph bert24_training.json --format dnn-partitioning --devices 6 --cpus 1\n";

double peak_rss_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024.0;  // Linux gives KiB
}

struct Answer {
    core::Value document;  // the contract's keys
    bool is_feasible = false;
    std::string reason;
    std::string text;
};

std::string summary(double objective, double lower_bound, const std::string& unit, bool is_proven, bool is_contiguous) {
    std::string text = fmt::format("largest load {:.6f} {}", objective, unit);
    if (is_proven) return text + (is_contiguous ? ", proven optimal among contiguous placements\n" : ", proven optimal\n");
    return text + fmt::format(", lower bound {:.6f} {} (gap {:.2f} %)\n", lower_bound, unit, objective > 0 ? 100 * (objective - lower_bound) / objective : 0);
}

std::string list_nodes(const core::Value& nodes) {
    std::string text;
    for (std::size_t i = 0; i < nodes.size() && i < 12; ++i) text += fmt::format("{}{}", i ? " " : "", nodes.items()[i].integer());
    if (nodes.size() > 12) text += fmt::format(" ... ({} nodes)", nodes.size());
    return text;
}

Answer answer_of(const planner::PlacementProblem& problem, const planner::PlacementResult& result, bool is_contiguous) {
    Answer answer;
    answer.is_feasible = result.is_feasible;
    answer.reason = result.reason;
    if (!result.is_feasible) return answer;
    // Times of this format are milliseconds.
    core::Value& document = answer.document;
    document["objective"] = result.objective.value * 1e3;
    document["unit"] = "ms";
    document["proven_optimal"] = result.is_proven_optimal;
    document["lower_bound"] = result.lower_bound.value * 1e3;
    core::Value stages = core::Value::array();
    answer.text = summary(result.objective.value * 1e3, result.lower_bound.value * 1e3, "ms", result.is_proven_optimal, is_contiguous);
    for (const planner::PlacedStage& stage : result.stages) {
        core::Value entry, nodes = core::Value::array();
        for (int item : stage.items)
            for (std::int64_t node : problem.items[static_cast<std::size_t>(item)].nodes) nodes.append(node);
        answer.text += fmt::format("  {:<11} {:>12.6f} ms  {:>10}  {}\n", stage.is_cpu ? "CPU" : "accelerator", stage.load.value * 1e3, core::format(stage.memory), list_nodes(nodes));
        entry["nodes"] = std::move(nodes);
        entry["device"] = stage.is_cpu ? "cpu" : "accelerator";
        entry["load"] = stage.load.value * 1e3;
        entry["memory"] = stage.memory.value;
        stages.append(std::move(entry));
    }
    document["stages"] = std::move(stages);
    return answer;
}

Answer answer_of(const planner::ReplicatedProblem& problem, const planner::ReplicatedResult& result) {
    Answer answer;
    answer.is_feasible = result.is_feasible;
    answer.reason = result.reason;
    if (!result.is_feasible) return answer;
    core::Value& document = answer.document;
    document["objective"] = result.objective.value;
    document["unit"] = "s per sample";
    document["proven_optimal"] = result.is_proven_optimal;
    document["lower_bound"] = result.lower_bound.value;
    core::Value stages = core::Value::array();
    answer.text = summary(result.objective.value, result.lower_bound.value, "s per sample", result.is_proven_optimal, true);
    for (const planner::ReplicatedStage& stage : result.stages) {
        core::Value entry, nodes = core::Value::array(), configurations = core::Value::array();
        for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
            const planner::ConfigurableNode& node = problem.nodes[static_cast<std::size_t>(stage.nodes[i])];
            nodes.append(node.id);
            configurations.append(node.configurations.at(stage.tensor)[static_cast<std::size_t>(stage.configurations[i])].name);
        }
        answer.text += fmt::format("  data {:>3} x tensor {:>2} {:>14.9f} s  {:>10}  {}\n", stage.data, stage.tensor, stage.time.value, core::format(stage.memory), list_nodes(nodes));
        entry["nodes"] = std::move(nodes);
        entry["load"] = stage.time.value;
        entry["memory"] = stage.memory.value;
        entry["data_parallel"] = stage.data;
        entry["tensor_parallel"] = stage.tensor;
        entry["configurations"] = std::move(configurations);
        stages.append(std::move(entry));
    }
    document["stages"] = std::move(stages);
    return answer;
}

}  // namespace

int run_partition_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const auto begin = std::chrono::steady_clock::now();
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments,
                    {.with_value = {"--graph", "--format", "--devices", "--cpus", "--memory", "--micro-batches", "--bandwidth", "--time-limit"},
                     .flags = {"--json", "--help", "--non-contiguous"}},
                    diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    for (const std::string& stray : options.positional()) options.error("", fmt::format("unexpected argument {}", core::in_quotes(stray)), "the graph is given with --graph FILE");
    std::optional<std::string> path = options.text("--graph");
    if (!path) options.error("--graph", "--graph FILE is missing");
    std::string format = options.choice("--format", {"dnn-partitioning", "piper"}).value_or("dnn-partitioning");
    std::optional<std::int64_t> devices = options.integer("--devices", 0, 10000), cpus = options.integer("--cpus", 0, 10000),
                                micro_batches = options.integer("--micro-batches", 1, 1 << 20);
    std::optional<double> time_limit = options.real("--time-limit", 0, 1e7);
    std::optional<core::Bytes> memory;
    if (std::optional<std::string> text = options.text("--memory")) {
        memory = core::parse_bytes(*text);
        if (!memory) memory = core::parse_bytes(*text + "B");
        if (!memory || memory->value < 0) options.error("--memory", fmt::format("--memory = {} is not an amount of memory", core::in_quotes(*text)), "bytes as a number, or \"16GiB\"");
    }
    std::optional<core::BytesPerSecond> bandwidth;
    if (std::optional<std::string> text = options.text("--bandwidth")) {
        bandwidth = core::parse_bytes_per_second(*text);
        if (!bandwidth) bandwidth = core::parse_bytes_per_second(*text + "B/s");
        if (!bandwidth || bandwidth->value <= 0)
            options.error("--bandwidth", fmt::format("--bandwidth = {} is not a positive rate", core::in_quotes(*text)), "bytes per second as a number, or \"25GiB/s\"");
    }
    if (format == "piper") {
        for (const char* name : {"--cpus", "--non-contiguous"})
            if (options.has(name)) options.error(name, fmt::format("{} has no meaning for the piper format", name), "leave it out");
        if (devices && *devices < 1) options.error("--devices", "--devices must be at least 1");
    } else {
        for (const char* name : {"--micro-batches", "--bandwidth"})
            if (options.has(name)) options.error(name, fmt::format("{} has no meaning for the dnn-partitioning format: its edges carry times", name), "leave it out");
    }
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    std::optional<core::Value> document;
    // Graphs are read as JSON whatever the file is called.
    if (std::optional<std::string> text = core::read_file(*path, diagnostics, {}, "--graph")) document = core::parse_json(*text, *path, diagnostics);
    if (!document) return show(diagnostics, as_json, out, err);

    Answer answer;
    core::Seconds limit(time_limit.value_or(1e9));
    if (format == "piper") {
        std::optional<planner::ReplicatedProblem> problem = planner::read_piper(*document, diagnostics);
        if (!problem) return show(diagnostics, as_json, out, err);
        if (devices) problem->devices = static_cast<int>(*devices);
        if (memory) problem->memory_limit = *memory;
        if (micro_batches) problem->micro_batches = static_cast<int>(*micro_batches);
        if (bandwidth) problem->bandwidth = *bandwidth;
        planner::ReplicatedOptions search;
        search.time_limit = limit;
        answer = answer_of(*problem, planner::place_replicated(*problem, search));
    } else {
        std::optional<planner::PlacementProblem> problem = planner::read_dnn_partitioning(*document, diagnostics);
        if (!problem) return show(diagnostics, as_json, out, err);
        if (devices) problem->accelerators = static_cast<int>(*devices);
        if (cpus) problem->cpus = static_cast<int>(*cpus);
        if (memory) problem->memory_limit = *memory;
        const bool is_contiguous = !options.has("--non-contiguous");
        answer = answer_of(*problem, is_contiguous ? planner::place_contiguous(*problem, {.time_limit = limit}) : planner::place_anywhere(*problem, {.time_limit = limit}), is_contiguous);
    }
    if (!answer.is_feasible) {
        core::Diagnostics reason;
        reason.error({.file = *path}, "--devices", "no placement: " + answer.reason, "more or larger devices (--devices, --memory), or a CPU (--cpus)");
        show(reason, as_json, out, err);
        return no_plan;
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (as_json) {
        answer.document["seconds"] = seconds;
        answer.document["peak_rss_mib"] = peak_rss_mib();
        out << core::to_json(answer.document) << '\n';
    } else {
        show(diagnostics, false, out, err);
        out << answer.text << fmt::format("{:.3f} s, {:.0f} MiB\n", seconds, peak_rss_mib());
    }
    return good;
}

}  // namespace apps
