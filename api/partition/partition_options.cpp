#include "api/partition/partition_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/core.h>

#include "api/output.h"
#include "core/diagnostics.h"

namespace api {

namespace {

// Lists may also be given as several arguments (`--bandwidth 1e10 1.25e9`): numbers after the first are
// joined to it.
std::vector<std::string> with_joined_lists(const std::vector<std::string>& arguments) {
    std::vector<std::string> joined;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        joined.push_back(arguments[i]);
        if (arguments[i] != "--bandwidth" && arguments[i] != "--devices") continue;
        for (bool is_first = true; i + 1 < arguments.size() && !arguments[i + 1].empty() &&
                                   std::isdigit(static_cast<unsigned char>(arguments[i + 1][0]));
             is_first = false) {
            if (is_first) joined.push_back(arguments[++i]);
            else joined.back() += "," + arguments[++i];
        }
    }
    return joined;
}

// "6", "4x4" or "4,4": workers of each level, innermost first.
std::vector<int> device_counts(Options& options) {
    std::vector<int> counts;
    for (const std::string& given : options.list("--devices")) {
        std::string part = given;
        std::replace(part.begin(), part.end(), 'x', ',');
        for (std::size_t begin = 0; begin <= part.size();) {
            const std::size_t end = std::min(part.find(',', begin), part.size());
            int count = 0;
            const auto [stop, failure] = std::from_chars(part.data() + begin, part.data() + end, count);
            if (failure != std::errc{} || stop != part.data() + end || count < 0 || count > 10000) {
                options.error(
                    "--devices",
                    fmt::format("--devices = {} is not a number of devices", core::in_quotes(given)),
                    "0 to 10000; of levels, innermost first: 4x4");
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
    if (!memory || memory->value < 0)
        options.error("--memory",
                      fmt::format("--memory = {} is not an amount of memory", core::in_quotes(*text)),
                      "bytes as a number, or \"16GiB\"");
    return memory;
}

std::vector<core::BytesPerSecond> bandwidths(Options& options) {
    std::vector<core::BytesPerSecond> result;
    for (const std::string& text : options.list("--bandwidth")) {
        std::optional<core::BytesPerSecond> bandwidth = core::parse_bytes_per_second(text);
        if (!bandwidth) bandwidth = core::parse_bytes_per_second(text + "B/s");
        if (!bandwidth || bandwidth->value <= 0) {
            options.error("--bandwidth",
                          fmt::format("--bandwidth = {} is not a positive rate", core::in_quotes(text)),
                          "bytes per second as a number, or \"25GiB/s\"");
            continue;
        }
        result.push_back(*bandwidth);
    }
    return result;
}

std::optional<int> whole(Options& options, const std::string& name, std::int64_t least,
                         std::int64_t greatest) {
    const std::optional<std::int64_t> value = options.integer(name, least, greatest);
    return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
}

const OptionNames names{.with_value = {"--graph",
                                       "--format",
                                       "--devices",
                                       "--cpus",
                                       "--memory",
                                       "--micro-batches",
                                       "--bandwidth",
                                       "--time-limit",
                                       "--algorithm",
                                       "--optimize",
                                       "--memory-weight",
                                       "--target",
                                       "--granularity",
                                       "--tied",
                                       "--micro-batch",
                                       "--seq-len",
                                       "--out",
                                       "--load-partition",
                                       "--default-partition",
                                       "--devices-per-instance",
                                       "--dot",
                                       "--svg"},
                        .flags = {"--json", "--help", "--non-contiguous", "--allow-unknown"}};

}  // namespace

PartitionRequest read_partition_request(const std::vector<std::string>& arguments,
                                        core::Diagnostics& diagnostics) {
    Options options(with_joined_lists(arguments), names, diagnostics);
    PartitionRequest request;
    for (const std::string& stray : options.positional())
        options.error(stray, fmt::format("unexpected argument {}", core::in_quotes(stray)),
                      "the graph is given with --graph FILE");
    request.path = options.text("--graph").value_or("");
    if (request.path.empty()) options.error("--graph", "--graph FILE is missing");
    request.format =
        options.choice("--format", {"dnn-partitioning", "pipedream", "piper", "onnx", "toml"}).value_or("");
    request.device_counts = device_counts(options);
    request.cpus = whole(options, "--cpus", 0, 10000);
    request.micro_batches = whole(options, "--micro-batches", 1, 1 << 20);
    request.memory = memory_option(options);
    request.bandwidths = bandwidths(options);
    if (const auto seconds = options.real("--time-limit", 0, 1e7))
        request.time_limit = core::Seconds(*seconds);
    request.is_contiguous = !options.has("--non-contiguous");
    if (const auto algorithm = options.choice("--algorithm", {"exact", "smp_tree", "chain", "multilevel"}))
        request.algorithm = *algorithm == "smp_tree"     ? PartitionAlgorithm::smp_tree
                            : *algorithm == "chain"      ? PartitionAlgorithm::chain
                            : *algorithm == "multilevel" ? PartitionAlgorithm::multilevel
                                                         : PartitionAlgorithm::exact;
    // SDK documentation of SMP v1: memory_weight is 0.2 when optimize is speed, else 0.8.
    if (const auto optimize = options.choice("--optimize", {"speed", "memory"}))
        request.memory_weight = *optimize == "speed" ? 0.2 : 0.8;
    if (const auto weight = options.real("--memory-weight", 0, 1)) request.memory_weight = weight;
    if (const auto granularity = options.choice("--granularity", {"unit", "module", "operator"}))
        request.granularity = *granularity == "unit"     ? partition::Granularity::unit
                              : *granularity == "module" ? partition::Granularity::module
                                                         : partition::Granularity::operation;
    if (const auto tied = options.choice("--tied", {"together", "copied"}))
        request.tied =
            *tied == "together" ? partition::TiedParameters::together : partition::TiedParameters::copied;
    request.target = options.text("--target").value_or(request.target);
    request.micro_batch = whole(options, "--micro-batch", 1, 1 << 20).value_or(1);
    request.sequence_length = options.integer("--seq-len", 1, 1 << 24);
    request.allow_unknown = options.has("--allow-unknown");
    request.out = options.text("--out");
    request.load = options.text("--load-partition");
    request.default_partition = whole(options, "--default-partition", 0, 10000);
    request.devices_per_instance = whole(options, "--devices-per-instance", 1, 10000);
    request.dot = options.text("--dot");
    request.svg = options.text("--svg");
    for (const char* name : {"--out", "--dot", "--svg"})
        if (const auto path = options.text(name)) check_output(name, *path, diagnostics);
    if (request.default_partition && !request.load)
        options.error("--default-partition", "--default-partition is of a loaded decision",
                      "give --load-partition FILE");
    if (!request.is_contiguous && request.algorithm != PartitionAlgorithm::exact)
        options.error("--algorithm", "--non-contiguous has its own search", "leave --algorithm out");
    return request;
}

void refuse_foreign_options(const std::vector<std::string>& arguments, const std::string& format,
                            core::Diagnostics& diagnostics) {
    core::Diagnostics ignored;
    Options options(with_joined_lists(arguments), names, ignored);
    const std::vector<std::string> of_models = {"--target",      "--granularity", "--tied",
                                                "--micro-batch", "--seq-len",     "--allow-unknown"};
    const std::vector<std::string> of_placements = {
        "--cpus",          "--non-contiguous",    "--algorithm",           "--optimize",
        "--memory-weight", "--default-partition", "--devices-per-instance"};
    std::vector<std::string> foreign;
    if (format != "model") foreign = of_models;
    if (format == "model") foreign = {"--cpus", "--bandwidth"};
    if (format == "piper" || format == "pipedream")
        foreign.insert(foreign.end(), of_placements.begin(), of_placements.end());
    if (format == "pipedream") foreign.push_back("--micro-batches");
    if (format == "dnn-partitioning") foreign.insert(foreign.end(), {"--micro-batches", "--bandwidth"});
    const bool is_replicated = format == "piper" || format == "pipedream";
    const auto reason = [&](const std::string& name) -> std::string {
        if (format == "dnn-partitioning" && name == "--bandwidth") return "its edges carry times";
        if (!is_replicated) return "leave it out";
        if (name == "--cpus") return "its devices are all alike: leave it out";
        if (name == "--non-contiguous")
            return "the samples in flight of its stages are counted in pipeline order: leave it out";
        if (name == "--algorithm" || name == "--optimize" || name == "--memory-weight")
            return "the baselines and SMP's weights know no replicated stages: leave it out";
        if (name == "--default-partition")
            return "a stage's replicas belong to its nodes: name every node in its stage";
        if (name == "--devices-per-instance")
            return format == "piper" ? "all its devices share one bandwidth: leave it out"
                                     : "say it by levels: --devices 8x2";
        return "leave it out";
    };
    for (const std::string& name : foreign)
        if (options.has(name))
            diagnostics.error({}, name,
                              fmt::format("{} has no meaning for {}", name,
                                          format == "model" ? "a model" : "the " + format + " format"),
                              reason(name));
}

std::vector<partition::BandwidthLevel> bandwidth_levels(const PartitionRequest& request,
                                                        core::Diagnostics& diagnostics) {
    std::vector<int> counts = request.device_counts;
    std::vector<core::BytesPerSecond> rates = request.bandwidths;
    if (counts.empty() || std::count(counts.begin(), counts.end(), 0)) {
        diagnostics.error({}, "--devices",
                          counts.empty() ? "--devices is missing: a profile does not say on how many workers"
                                         : "--devices must be at least 1",
                          "e.g. 4, or 4x4 (levels, innermost first)");
        return {};
    }
    // The default of PipeDream's optimizer (--network_bandwidths).
    if (rates.empty()) rates.push_back(core::BytesPerSecond(1e9));
    if (counts.size() == 1 && rates.size() > 1) {
        const int each =
            static_cast<int>(std::lround(std::pow(counts.front(), 1.0 / static_cast<double>(rates.size()))));
        if (std::lround(std::pow(each, static_cast<double>(rates.size()))) != counts.front()) {
            diagnostics.error({}, "--devices",
                              fmt::format("{} devices cannot be divided evenly over {} levels of bandwidth",
                                          counts.front(), rates.size()),
                              "say how many of each level, innermost first: 8x2");
            return {};
        }
        counts.assign(rates.size(), each);
    }
    if (rates.size() == 1) rates.resize(counts.size(), rates.front());
    if (rates.size() != counts.size()) {
        diagnostics.error({}, "--bandwidth",
                          fmt::format("{} levels of devices, {} bandwidths", counts.size(), rates.size()),
                          "give one bandwidth a level, innermost first");
        return {};
    }
    constexpr double most_workers = 1 << 20;
    double workers = 1;
    for (int count : counts) workers *= count;
    if (workers > most_workers) {
        diagnostics.error({}, "--devices", fmt::format("{:.0f} workers in all", workers),
                          fmt::format("give at most {:.0f}", most_workers));
        return {};
    }
    std::vector<partition::BandwidthLevel> levels;
    for (std::size_t i = 0; i < counts.size(); ++i) levels.push_back({counts[i], rates[i]});
    return levels;
}

}  // namespace api
