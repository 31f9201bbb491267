#include "apps/smplan_partition.h"

#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/partition_answer.h"
#include "core/document.h"
#include "planner/hierarchical_placement.h"
#include "planner/placement.h"
#include "planner/reader/dnn_partitioning.h"
#include "planner/reader/pipedream.h"
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
    "  --format FORMAT    dnn-partitioning, pipedream or piper (default: by content)\n"
    "  --devices K        accelerators (default: the file's); pipedream: workers, of several levels of bandwidth innermost first, 4x4\n"
    "  --cpus L           CPU devices (dnn-partitioning; default: the file's)\n"
    "  --memory BYTES     of one accelerator, as a number or \"16GiB\" (default: the file's)\n"
    "  --micro-batches N  in a batch (piper; default: the file's)\n"
    "  --bandwidth B...   bytes per second, as a number or \"25GiB/s\" (piper; default: the file's; pipedream: one a level, default 1e9)\n"
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

// Lists may also be given as several arguments (`--bandwidth 1e10 1.25e9`): numbers after the first are joined to it.
std::vector<std::string> with_joined_lists(const std::vector<std::string>& arguments) {
    std::vector<std::string> joined;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        joined.push_back(arguments[i]);
        if (arguments[i] != "--bandwidth" && arguments[i] != "--devices") continue;
        for (bool is_first = true; i + 1 < arguments.size() && !arguments[i + 1].empty() && std::isdigit(static_cast<unsigned char>(arguments[i + 1][0])); is_first = false) {
            if (is_first) joined.push_back(arguments[++i]);
            else joined.back() += "," + arguments[++i];
        }
    }
    return joined;
}

// "6", "4x4" or "4,4": workers of each level, innermost first.
std::vector<int> device_counts(Options& options) {
    std::vector<int> counts;
    for (std::string part : options.list("--devices")) {
        std::replace(part.begin(), part.end(), 'x', ',');
        for (std::size_t begin = 0; begin <= part.size();) {
            const std::size_t end = std::min(part.find(',', begin), part.size());
            int count = 0;
            const auto [stop, failure] = std::from_chars(part.data() + begin, part.data() + end, count);
            if (failure != std::errc{} || stop != part.data() + end || count < 0 || count > 10000) {
                options.error("--devices", fmt::format("--devices = {} is not a number of devices", core::in_quotes(part)), "0 to 10000; of levels, innermost first: 4x4");
                return {};
            }
            counts.push_back(count);
            begin = end + 1;
        }
    }
    return counts;
}

std::optional<core::Bytes> memory_option(Options& options) {
    std::optional<std::string> text = options.text("--memory");
    if (!text) return std::nullopt;
    std::optional<core::Bytes> memory = core::parse_bytes(*text);
    if (!memory) memory = core::parse_bytes(*text + "B");
    if (!memory || memory->value < 0) options.error("--memory", fmt::format("--memory = {} is not an amount of memory", core::in_quotes(*text)), "bytes as a number, or \"16GiB\"");
    return memory;
}

std::vector<core::BytesPerSecond> bandwidths(Options& options) {
    std::vector<core::BytesPerSecond> result;
    for (const std::string& text : options.list("--bandwidth")) {
        std::optional<core::BytesPerSecond> bandwidth = core::parse_bytes_per_second(text);
        if (!bandwidth) bandwidth = core::parse_bytes_per_second(text + "B/s");
        if (!bandwidth || bandwidth->value <= 0) {
            options.error("--bandwidth", fmt::format("--bandwidth = {} is not a positive rate", core::in_quotes(text)), "bytes per second as a number, or \"25GiB/s\"");
            continue;
        }
        result.push_back(*bandwidth);
    }
    return result;
}

// One bandwidth for all levels, or one a level. A single count for several bandwidths is divided evenly: 16 workers of two levels are 4 x 4.
std::vector<planner::BandwidthLevel> bandwidth_levels(Options& options, std::vector<int> counts, std::vector<core::BytesPerSecond> rates) {
    // The default of PipeDream's optimizer (--network_bandwidths).
    if (rates.empty()) rates.push_back(core::BytesPerSecond(1e9));
    if (counts.size() == 1 && rates.size() > 1) {
        const int each = static_cast<int>(std::lround(std::pow(counts.front(), 1.0 / static_cast<double>(rates.size()))));
        if (std::lround(std::pow(each, static_cast<double>(rates.size()))) != counts.front()) {
            options.error("--devices", fmt::format("{} devices cannot be divided evenly over {} levels of bandwidth", counts.front(), rates.size()),
                          "say how many of each level, innermost first: 8x2");
            return {};
        }
        counts.assign(rates.size(), each);
    }
    if (rates.size() == 1) rates.resize(counts.size(), rates.front());
    if (rates.size() != counts.size()) {
        options.error("--bandwidth", fmt::format("{} levels of devices, {} bandwidths", counts.size(), rates.size()), "give one bandwidth a level, innermost first");
        return {};
    }
    std::vector<planner::BandwidthLevel> levels;
    for (std::size_t i = 0; i < counts.size(); ++i) levels.push_back({counts[i], rates[i]});
    return levels;
}

}  // namespace

int run_partition_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const auto begin = std::chrono::steady_clock::now();
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(with_joined_lists(arguments),
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
    std::string format = options.choice("--format", {"dnn-partitioning", "pipedream", "piper"}).value_or("");
    std::optional<std::int64_t> cpus = options.integer("--cpus", 0, 10000), micro_batches = options.integer("--micro-batches", 1, 1 << 20);
    std::optional<double> time_limit = options.real("--time-limit", 0, 1e7);
    const std::optional<core::Bytes> memory = memory_option(options);
    const std::vector<core::BytesPerSecond> rates = bandwidths(options);
    const std::vector<int> counts = device_counts(options);
    if (counts.size() > 1 && format != "pipedream" && !format.empty())
        options.error("--devices", "only the pipedream format has levels of devices", "give one number");
    std::optional<std::string> text = path ? core::read_file(*path, diagnostics, {}, "--graph") : std::nullopt;
    if (diagnostics.has_errors() || !text) return show(diagnostics, as_json, out, err);
    std::optional<core::Value> document;
    if (format.empty()) {
        if (planner::looks_like_pipedream(*text)) format = "pipedream";
        else if ((document = core::parse_json(*text, *path, diagnostics))) format = document->find("mbsInBatch") ? "piper" : "dnn-partitioning";
        else return show(diagnostics, as_json, out, err);
    }
    std::optional<std::int64_t> devices;
    if (!counts.empty()) devices = counts.front();
    std::optional<core::BytesPerSecond> bandwidth;
    if (!rates.empty()) bandwidth = rates.front();
    if (format == "piper") {
        for (const char* name : {"--cpus", "--non-contiguous"})
            if (options.has(name)) options.error(name, fmt::format("{} has no meaning for the piper format", name), "leave it out");
        if (devices && *devices < 1) options.error("--devices", "--devices must be at least 1");
    } else if (format == "pipedream") {
        for (const char* name : {"--cpus", "--non-contiguous", "--micro-batches"})
            if (options.has(name)) options.error(name, fmt::format("{} has no meaning for the pipedream format", name), "leave it out");
        if (counts.empty()) options.error("--devices", "--devices is missing: a profile does not say on how many workers", "e.g. 4, or 4x4 (levels, innermost first)");
        if (std::count(counts.begin(), counts.end(), 0)) options.error("--devices", "--devices must be at least 1");
    } else {
        for (const char* name : {"--micro-batches", "--bandwidth"})
            if (options.has(name)) options.error(name, fmt::format("{} has no meaning for the dnn-partitioning format: its edges carry times", name), "leave it out");
    }
    std::vector<planner::BandwidthLevel> levels = format == "pipedream" ? bandwidth_levels(options, counts, rates) : std::vector<planner::BandwidthLevel>();
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    // Graphs are read as JSON whatever the file is called.
    if (format != "pipedream" && !document && !(document = core::parse_json(*text, *path, diagnostics))) return show(diagnostics, as_json, out, err);

    PartitionAnswer answer;
    core::Seconds limit(time_limit.value_or(1e9));
    if (format == "pipedream") {
        std::optional<planner::HierarchicalProblem> problem = planner::read_pipedream(*text, *path, diagnostics);
        if (!problem) return show(diagnostics, as_json, out, err);
        problem->levels = std::move(levels);
        if (memory) problem->memory_limit = *memory;
        answer = answer_of(*problem, planner::place_hierarchical(*problem, {.time_limit = limit}));
    } else if (format == "piper") {
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
