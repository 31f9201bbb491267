#include "api/partition/partition_command.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/core.h>

#include "api/output.h"
#include "api/partition/partition_answer.h"
#include "api/partition/partition_decision.h"
#include "api/partition/partition_options.h"
#include "api/partition/partition_report.h"
#include "cluster/node.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "partition/baseline/baseline_placement.h"
#include "partition/hierarchical/hierarchical_check.h"
#include "partition/reader/costed_graph.h"
#include "partition/reader/dnn_partitioning.h"
#include "partition/reader/pipedream.h"
#include "partition/reader/piper.h"
#include "partition/replicated/replicated_check.h"
#include "planner/search_space.h"
#include "sim/cost/compute.h"

namespace api {

namespace {

double peak_rss_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024.0;  // Linux gives KiB
}

// A problem of any format whose answer is a PlacementResult, with what only models have.
struct Placeable {
    partition::PlacementProblem problem;
    partition::ModuleTree tree;
    std::string hash, granularity;
    std::vector<std::string> assumptions;
    std::optional<model::ModelGraph> graph;
    std::optional<partition::ModelPlacement> placement;
    std::optional<int> devices_per_instance;  // none: all on one
    PlacementUnit unit = PlacementUnit::seconds;
};

class PartitionCommand {
public:
    PartitionCommand(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics,
                     const Watch& watch)
        : arguments_(arguments),
          diagnostics_(diagnostics),
          watch_(watch),
          request_(read_partition_request(arguments, diagnostics)) {}

    const std::string& path() const { return request_.path; }
    // What may help where there is no placement.
    std::string remedy(const PartitionAnswer& answer) const {
        if (request_.algorithm != PartitionAlgorithm::exact)
            return "leave --algorithm out: the exact search finds a placement if there is one";
        if (!answer.is_proven_infeasible)
            return "a longer --time-limit, or more or larger devices (--devices, --memory)";
        const bool has_cpus = format_ == "dnn-partitioning" || format_ == "toml";
        return std::string("more or larger devices (--devices, --memory)") +
               (has_cpus ? ", or a CPU (--cpus)" : "");
    }
    bool is_loaded() const { return request_.load.has_value(); }  // a decision is judged, nothing searched
    // Was it stopped where it might have found a better placement?
    bool is_stopped() const {
        return !is_loaded() && request_.algorithm == PartitionAlgorithm::exact && watch_.is_stopped &&
               watch_.is_stopped();
    }

    std::optional<PartitionAnswer> run() {
        if (diagnostics_.has_errors()) return std::nullopt;
        if (!find_format()) return std::nullopt;
        refuse_foreign_options(arguments_, format_ == "toml" ? "toml" : format_, diagnostics_);
        if (request_.device_counts.size() > 1 && format_ != "pipedream")
            diagnostics_.error({}, "--devices", "only the pipedream format has levels of devices",
                               "give one number");
        if (diagnostics_.has_errors()) return std::nullopt;
        if (format_ == "pipedream") return place_pipedream();
        if (format_ == "piper") return place_piper();
        std::optional<Placeable> placeable = format_ == "model"  ? read_model()
                                             : format_ == "toml" ? read_costed()
                                                                 : read_dnn();
        if (!placeable || diagnostics_.has_errors()) return std::nullopt;
        return place(*placeable);
    }

private:
    std::function<void(const partition::PlacementProgress&)> progress() const {
        if (!watch_.progress) return {};
        return [this](const partition::PlacementProgress& at) {
            watch_.progress({.best = std::isfinite(at.objective) ? std::optional(at.objective) : std::nullopt,
                             .lower_bound = at.lower_bound,
                             .seconds = at.seconds});
        };
    }
    bool read_text() {
        if (text_) return true;
        text_ = core::read_file(request_.path, diagnostics_, {}, "--graph");
        return text_.has_value();
    }
    // dnn-partitioning, pipedream, piper, toml (a costed graph) or model.
    bool find_format() {
        format_ = request_.format;
        const bool is_model_file =
            request_.path.ends_with(".onnx") || !std::filesystem::is_regular_file(request_.path);
        if (format_ == "onnx" ||
            (format_.empty() && is_model_file && !std::filesystem::path(request_.path).has_extension()) ||
            (format_.empty() && request_.path.ends_with(".onnx"))) {
            format_ = "model";
            return true;
        }
        if (!read_text()) return false;
        if (format_ == "toml" || (format_.empty() && request_.path.ends_with(".toml"))) {
            document_ = core::parse_toml(*text_, request_.path, diagnostics_);
            if (!document_) return false;
            if (document_->find("instance") && document_->find("device")) {
                diagnostics_.error(
                    {.file = request_.path}, "--graph",
                    fmt::format("{} is a hardware profile, not a graph", core::in_quotes(request_.path)),
                    "the model is the graph, the profile its target: --graph MODEL --target " +
                        request_.path);
                return false;
            }
            format_ = document_->find("node") ? "toml" : "model";
            return true;
        }
        if (format_.empty() && partition::looks_like_pipedream(*text_)) format_ = "pipedream";
        if (format_ == "pipedream") return true;
        // Graphs are read as JSON whatever the file is called.
        document_ = core::parse_json(*text_, request_.path, diagnostics_);
        if (!document_) return false;
        if (format_.empty())
            format_ = document_->find("mbsInBatch")   ? "piper"
                      : document_->find("model_type") ? "model"
                                                      : "dnn-partitioning";
        return true;
    }

    std::optional<PartitionAnswer> place_pipedream() {
        std::optional<partition::HierarchicalProblem> problem =
            partition::read_pipedream(*text_, request_.path, diagnostics_);
        std::vector<partition::BandwidthLevel> levels = bandwidth_levels(request_, diagnostics_);
        if (!problem || diagnostics_.has_errors()) return std::nullopt;
        problem->levels = std::move(levels);
        if (request_.memory) problem->memory_limit = *request_.memory;
        partition::HierarchicalOptions search;
        search.time_limit = request_.time_limit;
        search.progress = progress();
        search.is_stopped = watch_.is_stopped;
        return place_or_judge(*problem, [&] { return partition::place_hierarchical(*problem, search); }, "s");
    }

    std::optional<PartitionAnswer> place_piper() {
        std::optional<partition::ReplicatedProblem> problem = partition::read_piper(*document_, diagnostics_);
        if (!request_.device_counts.empty() && request_.device_counts.front() < 1)
            diagnostics_.error({}, "--devices", "--devices must be at least 1");
        if (!problem || diagnostics_.has_errors()) return std::nullopt;
        if (!request_.device_counts.empty()) problem->devices = request_.device_counts.front();
        if (request_.memory) problem->memory_limit = *request_.memory;
        if (request_.micro_batches) problem->micro_batches = *request_.micro_batches;
        if (!request_.bandwidths.empty()) problem->bandwidth = request_.bandwidths.front();
        partition::ReplicatedOptions search;
        search.time_limit = request_.time_limit;
        search.progress = progress();
        search.is_stopped = watch_.is_stopped;
        return place_or_judge(
            *problem, [&] { return partition::place_replicated(*problem, search); }, "s per sample");
    }

    // Replicated stages, searched or loaded, with all that is asked for beside them.
    template <class Problem, class Search>
    std::optional<PartitionAnswer> place_or_judge(const Problem& problem, Search search, const char* unit) {
        decltype(search()) result;
        if (request_.load) {
            const std::optional<schedule::PartitionFile> file =
                schedule::load_partition_file(*request_.load, diagnostics_, {}, "--load-partition");
            if (!file) return std::nullopt;
            auto loaded = apply_decision(*file, *request_.load, problem, diagnostics_);
            if (!loaded) return std::nullopt;
            result = std::move(*loaded);
        } else {
            result = search();
        }
        PartitionAnswer answer = answer_of(problem, result);
        if (!result.is_feasible) return answer;
        answer.document["graph_hash"] = partition::hash_of(problem);
        if (request_.out) {
            schedule::PartitionFile file = decision_of(problem, result);
            file.graph_hash = partition::hash_of(problem);
            file.objective = result.objective.value;
            file.lower_bound = result.lower_bound.value;
            file.unit = unit;
            save(std::move(file), answer);
            answer.saved = "placement";
        }
        add_picture(picture_of(problem, result), request_, answer.files);
        return answer;
    }

    std::optional<Placeable> read_dnn() {
        std::optional<partition::PlacementProblem> problem =
            partition::read_dnn_partitioning(*document_, diagnostics_, request_.is_contiguous);
        if (!problem) return std::nullopt;
        return placeable_of(std::move(*problem), PlacementUnit::milliseconds);
    }
    std::optional<Placeable> read_costed() {
        partition::CostedGraphOverrides overrides{.bandwidth = {}, .is_contiguous = request_.is_contiguous};
        if (!request_.bandwidths.empty()) overrides.bandwidth = request_.bandwidths.front();
        std::optional<partition::PlacementProblem> problem =
            partition::read_costed_graph(*document_, diagnostics_, overrides);
        if (!problem) return std::nullopt;
        for (const char* kind : {"--devices", "--cpus", "--memory"})
            if (!problem->devices.empty() &&
                ((kind == std::string("--devices") && !request_.device_counts.empty()) ||
                 (kind == std::string("--cpus") && request_.cpus) ||
                 (kind == std::string("--memory") && request_.memory)))
                diagnostics_.error({}, kind,
                                   fmt::format("{} has no meaning where the graph lists its devices", kind),
                                   "change the [[device]] tables");
        return placeable_of(std::move(*problem), PlacementUnit::seconds);
    }
    std::optional<Placeable> placeable_of(partition::PlacementProblem problem, PlacementUnit unit) {
        Placeable result;
        result.unit = unit;
        if (!request_.device_counts.empty()) problem.accelerators = request_.device_counts.front();
        if (request_.cpus) problem.cpus = *request_.cpus;
        if (request_.memory) problem.memory_limit = *request_.memory;
        if (request_.micro_batches) problem.micro_batches = *request_.micro_batches;
        result.hash = partition::hash_of(problem);
        result.tree = partition::flat_tree(problem);
        result.problem = std::move(problem);
        return result;
    }

    std::optional<Placeable> read_model() {
        model::LoadOptions load;
        load.sequence_length = request_.sequence_length;
        load.allow_unknown = request_.allow_unknown;
        Placeable result;
        result.graph = model::load_model(request_.path, load, diagnostics_, {}, "--graph");
        const std::optional<cluster::InstanceType> instance =
            cluster::load_instance(request_.target, diagnostics_, {}, "--target");
        if (!result.graph || !instance) return std::nullopt;
        const int devices =
            request_.device_counts.empty() ? instance->devices : request_.device_counts.front();
        if (devices < 1) {
            diagnostics_.error({}, "--devices", "--devices must be at least 1");
            return std::nullopt;
        }
        cluster::Cluster cluster;
        cluster.instance = *instance;
        cluster.nodes = (devices + instance->devices - 1) / instance->devices;
        if (cluster.nodes > 1 && !cluster::has_network(*instance)) {
            diagnostics_.error({}, "--devices",
                               fmt::format("{} has no network: it cannot be more than one node, {} devices "
                                           "are more than the {} devices of one",
                                           instance->name, devices, instance->devices),
                               fmt::format("use at most --devices {}", instance->devices));
            return std::nullopt;
        }
        schedule::Plan plan = planner::default_plan(instance->device);
        plan.micro_batch = request_.micro_batch;
        plan.micro_batches = request_.micro_batches.value_or(1);
        // The base plan whose kernels the device has: flash attention, else fused softmax, else plain.
        for (model::AttentionImplementation attention :
             {plan.attention, model::AttentionImplementation::fused_softmax,
              model::AttentionImplementation::unfused}) {
            plan.attention = attention;
            core::Diagnostics problems;
            if (sim::ComputeCost::make(*result.graph, instance->device, plan, problems)) break;
        }
        const partition::TiedParameters tied = request_.tied.value_or(
            request_.is_contiguous ? partition::TiedParameters::copied : partition::TiedParameters::together);
        result.placement = partition::model_placement(*result.graph, cluster, plan, devices,
                                                      request_.granularity, tied, diagnostics_);
        if (!result.placement) return std::nullopt;
        result.problem = result.placement->problem;
        if (request_.memory) result.problem.memory_limit = *request_.memory;
        result.tree = partition::module_tree(*result.graph, *result.placement);
        result.assumptions = result.graph->assumptions;
        result.assumptions.insert(result.assumptions.end(), result.placement->assumptions.begin(),
                                  result.placement->assumptions.end());
        result.assumptions.push_back(fmt::format("{} compute on {}, {} with fp32 state",
                                                 core::name_of(plan.precision.compute), instance->name,
                                                 schedule::name_of(plan.optimizer.kind)));
        result.hash = model::hash_of(*result.graph);
        result.granularity = request_.granularity == partition::Granularity::unit     ? "unit"
                             : request_.granularity == partition::Granularity::module ? "module"
                                                                                      : "operator";
        result.devices_per_instance = instance->devices;
        return result;
    }

    std::vector<partition::PlacedStage> baseline(const Placeable& placeable) const {
        switch (request_.algorithm) {
            case PartitionAlgorithm::smp_tree:
                return partition::place_smp_tree(placeable.problem, placeable.tree,
                                                 request_.memory_weight.value_or(0.8));
            case PartitionAlgorithm::chain: return partition::place_chain(placeable.problem);
            case PartitionAlgorithm::multilevel: return partition::place_multilevel(placeable.problem);
            case PartitionAlgorithm::exact: break;
        }
        return {};
    }

    partition::PlacementResult solve(const Placeable& placeable) {
        const partition::PlacementOptions options{.time_limit = request_.time_limit,
                                                  .threads = 0,
                                                  .progress = progress(),
                                                  .is_stopped = watch_.is_stopped};
        partition::PlacementResult result;
        if (request_.algorithm != PartitionAlgorithm::exact) {
            result.stages = baseline(placeable);
            result.is_feasible = partition::is_valid_placement(placeable.problem, result.stages);
            result.reason = "the baseline's stages do not respect memory or order";
        } else if (request_.memory_weight) {
            const partition::PlacementProblem weighed =
                partition::weighed(placeable.problem, *request_.memory_weight);
            result = request_.is_contiguous ? partition::place_contiguous(weighed, options)
                                            : partition::place_anywhere(weighed, options);
            for (partition::PlacedStage& stage : result.stages)
                stage = partition::stage_of(placeable.problem, stage.items, stage.device_class);
            partition::settle_memory(placeable.problem, result.stages);
            weighed_objective_ = result.objective.value;
            result.is_proven_optimal = false;  // of the weighed objective, which is told beside
        } else {
            result = request_.is_contiguous ? partition::place_contiguous(placeable.problem, options)
                                            : partition::place_anywhere(placeable.problem, options);
        }
        if (result.is_feasible &&
            (request_.algorithm != PartitionAlgorithm::exact || request_.memory_weight)) {
            result.objective = partition::largest_load(placeable.problem, result.stages);
            result.lower_bound =
                std::min(result.objective, partition::placement_lower_bound(placeable.problem));
        }
        return result;
    }

    std::optional<PartitionAnswer> place(Placeable& placeable) {
        partition::PlacementResult result;
        if (request_.load) {
            const std::optional<schedule::PartitionFile> file =
                schedule::load_partition_file(*request_.load, diagnostics_, {}, "--load-partition");
            if (!file) return std::nullopt;
            std::optional<partition::PlacementResult> loaded =
                apply_decision(*file, *request_.load, placeable.hash, request_.default_partition,
                               placeable.problem, diagnostics_);
            if (!loaded) return std::nullopt;
            result = std::move(*loaded);
        } else {
            result = solve(placeable);
        }
        PartitionAnswer answer = answer_of(placeable.problem, result, request_.is_contiguous, placeable.unit);
        if (!result.is_feasible) return answer;
        if (weighed_objective_) answer.document["weighed_objective"] = *weighed_objective_;
        add_cut_report(
            placeable.problem, result,
            request_.devices_per_instance ? request_.devices_per_instance : placeable.devices_per_instance,
            answer);
        answer.document["graph_hash"] = placeable.hash;
        if (placeable.graph) {
            const std::vector<std::int32_t> first =
                partition::first_units_of(*placeable.graph, *placeable.placement, result.stages);
            if (!first.empty()) answer.document["first_units"] = first;
            core::Value assumptions = core::Value::array();
            for (const std::string& assumption : placeable.assumptions) {
                assumptions.append(assumption);
                answer.text += "  assumed: " + assumption + "\n";
            }
            answer.document["assumptions"] = std::move(assumptions);
        }
        if (request_.out) save(placeable, result, answer);
        add_picture(picture_of(placeable.problem, result), request_, answer.files);
        return answer;
    }

    void save(schedule::PartitionFile file, PartitionAnswer& answer) const {
        file.graph = request_.path;
        file.algorithm = request_.load                                          ? "given"
                         : request_.algorithm == PartitionAlgorithm::smp_tree   ? "smp_tree"
                         : request_.algorithm == PartitionAlgorithm::chain      ? "chain"
                         : request_.algorithm == PartitionAlgorithm::multilevel ? "multilevel"
                                                                                : "exact";
        answer.files.push_back({*request_.out, schedule::write_partition_file(file)});
    }
    void save(const Placeable& placeable, const partition::PlacementResult& result, PartitionAnswer& answer) {
        schedule::PartitionFile file = decision_of(placeable.problem, result);
        file.graph_hash = placeable.hash;
        file.granularity = placeable.granularity;
        const double scale = placeable.unit == PlacementUnit::milliseconds ? 1e3 : 1;
        file.objective = result.objective.value * scale;
        file.lower_bound = result.lower_bound.value * scale;
        file.unit = placeable.unit == PlacementUnit::milliseconds ? "ms" : "s";
        if (placeable.graph)
            file.first_units =
                partition::first_units_of(*placeable.graph, *placeable.placement, result.stages);
        const bool runs = !file.first_units.empty();
        save(std::move(file), answer);
        answer.saved = !runs && placeable.graph ? "stages are not whole units: smsim and smexec cannot run it"
                                                : "placement";
    }

    const std::vector<std::string>& arguments_;
    core::Diagnostics& diagnostics_;
    const Watch& watch_;
    PartitionRequest request_;
    std::string format_;
    std::optional<std::string> text_;
    std::optional<core::Value> document_;
    std::optional<double> weighed_objective_;
};

}  // namespace

Reply partition(const std::vector<std::string>& arguments, const Watch& watch) {
    const auto begin = std::chrono::steady_clock::now();
    core::Diagnostics diagnostics;
    PartitionCommand command(arguments, diagnostics, watch);
    std::optional<PartitionAnswer> answer = command.run();
    if (!answer || diagnostics.has_errors()) return refusal(std::move(diagnostics));
    if (!answer->is_feasible) {
        if (command.is_stopped() && !answer->is_proven_infeasible) throw Stopped{};
        core::Diagnostics reason;
        if (command.is_loaded())
            reason.error({.file = command.path()}, "--load-partition",
                         "the decision is no placement: " + answer->reason,
                         "change it, or leave it out to search anew");
        else
            reason.error({.file = command.path()}, "--devices", "no placement: " + answer->reason,
                         command.remedy(*answer));
        return refusal(std::move(reason), Outcome::no_plan);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    answer->document["seconds"] = seconds;
    answer->document["peak_rss_mib"] = peak_rss_mib();
    const bool is_stopped = command.is_stopped() && !answer->document.find("proven_optimal")->boolean();
    if (!answer->saved.empty()) answer->files.front().said = answer->saved;
    return {.document = std::move(answer->document),
            .text = answer->text + fmt::format("{:.3f} s, {:.0f} MiB\n", seconds, peak_rss_mib()),
            .diagnostics = std::move(diagnostics),
            .files = std::move(answer->files),
            .is_stopped = is_stopped};
}

}  // namespace api
