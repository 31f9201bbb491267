#include "sim/evaluate.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/repetition.h"
#include "model/segment.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/planned_graph.h"
#include "sim/cost/collective/library.h"
#include "sim/cost/contention.h"
#include "sim/cost/framework/framework_catalogue.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/host_memory.h"
#include "sim/cost/pricing.h"
#include "sim/priced_partition.h"
#include "sim/report/breakdown.h"
#include "sim/report/memory_report.h"
#include "sim/short_steps.h"
#include "sim/simulated_step.h"

namespace sim {

namespace {

void judge_memory(Evaluation& evaluation) {
    const ClassMemory* tightest = nullptr;
    for (const ClassMemory& memory : evaluation.memory)
        if (!tightest || memory.peak > tightest->peak) tightest = &memory;
    if (!tightest) return;
    evaluation.peak_memory = tightest->peak;
    evaluation.fits = evaluation.peak_memory <= evaluation.available_memory;
    evaluation.tightest =
        fmt::format("pipeline rank {}: {} needed, {} available", tightest->pipeline,
                    core::format(tightest->peak), core::format(evaluation.available_memory));
}

void judge_host_memory(Evaluation& evaluation, const StepTask& task, core::Bytes offloaded) {
    if (offloaded.value <= 0) return;
    evaluation.host_memory = offloaded;
    if (!is_accelerator(task))
        evaluation.host_memory += evaluation.peak_memory * static_cast<double>(cluster::most_ranks_of_a_node(
                                                               task.cluster, task.plan.layout.ranks()));
    if (task.cluster.instance.host_memory.value > 0)
        evaluation.available_host_memory = task.cluster.instance.host_memory;
    if (!evaluation.available_host_memory) {
        evaluation.assumptions.push_back(
            fmt::format("{} states no host memory: the {} of offloaded {} are taken to fit there",
                        task.cluster.instance.name, core::format(offloaded), what_is_offloaded(task.plan)));
        return;
    }
    if (evaluation.host_memory <= *evaluation.available_host_memory) return;
    if (evaluation.fits)
        evaluation.tightest = fmt::format(
            "the host of the fullest node: {} of offloaded {}{} needed, {} available",
            core::format(evaluation.host_memory), what_is_offloaded(task.plan),
            is_accelerator(task) ? "" : " and ranks", core::format(*evaluation.available_host_memory));
    evaluation.fits = false;
}

// What a named library leaves to NCCL, and where its makers do not offer it.
void add_library_assumptions(std::vector<std::string>& lines, const StepTask& task) {
    const schedule::Plan& plan = task.plan;
    const Library* library = find_library(plan.communication);
    if (!library || plan.layout.data == 1) return;
    if (library->unsupported && task.cluster.instance.provider == "aws")
        if (const std::optional<core::Unsupported> reason = library->unsupported(task.cluster.instance))
            lines.push_back(fmt::format("communication = {}: {}; it is simulated all the same",
                                        plan.communication, reason->reason));
    std::string left;
    for (const schedule::CollectiveKind kind :
         {schedule::CollectiveKind::reduce_scatter, schedule::CollectiveKind::all_gather})
        if (plan.shards(schedule::Sharding::optimizer) && !library->carries(kind))
            left += fmt::format("{}{}", left.empty() ? "" : " and ", schedule::name_of(kind));
    if (!left.empty())
        lines.push_back(fmt::format("communication = {}: it has no {} for sharded state, which NCCL does",
                                    plan.communication, left));
}

void add_host_assumptions(std::vector<std::string>& lines, const StepTask& task) {
    if (!task.costs->host_update.is_there()) return;
    lines.push_back(fmt::format("hosts update at {:.0f} % of the rate of their memory's channels, {} a node",
                                100 * task.options.constants.host_update_rate,
                                core::format(task.cluster.instance.host_memory_bandwidth)));
}

void add_assumptions(Evaluation& evaluation, const StepTask& task, const StepRun& result) {
    std::vector<std::string>& lines = evaluation.assumptions;
    const schedule::Plan& plan = task.plan;
    if (result.ranks > result.classes &&
        !(task.costs && !task.cluster.instance.device.has_concurrent_streams &&
          plan.layout.ranks() > task.cluster.device_count()))
        lines.push_back(
            fmt::format("{} ranks are simulated as {} class{}: data- and tensor-parallel replicas do the "
                        "same work at the same time",
                        result.ranks, result.classes, result.classes == 1 ? "" : "es"));
    if (task.costs) {
        lines.insert(lines.end(), task.costs->compute.assumptions().begin(),
                     task.costs->compute.assumptions().end());
        if (result.ranks > 1)
            lines.push_back(
                result.contended_links > 0
                    ? fmt::format("communications that run at the same time share links max-min fairly: {} "
                                  "kind{} of link can be contended by several streams or "
                                  "pipeline coordinates",
                                  result.contended_links, result.contended_links == 1 ? "" : "s")
                    : std::string("no link is shared by communications of different streams or pipeline "
                                  "coordinates"));
        add_library_assumptions(lines, task);
        const cluster::DeviceSpec& device = task.cluster.instance.device;
        if (device.has_concurrent_streams && result.ranks > 1)
            lines.push_back(fmt::format(
                "compute loses {:.0f} % of the time it shares with collectives of the data-parallel group",
                100 * task.options.constants.overlap_loss));
        add_host_assumptions(lines, task);
        const int idle = task.cluster.device_count() - plan.layout.ranks();
        if (idle > 0)
            lines.push_back(
                fmt::format("{} of {} devices are idle but paid for", idle, task.cluster.device_count()));
        if (idle < 0)
            lines.push_back(
                fmt::format("{} ranks share {} cores: those that work on one core at the same time get equal "
                            "parts of it, and each rank its part of the memory",
                            plan.layout.ranks(), task.cluster.device_count()));
    }
    // Such orders would differ with the cluster; a plan's is the same wherever it is simulated and run.
    const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(plan.schedule);
    if (found && found->orders_by_times && plan.layout.pipeline > 1)
        lines.push_back(
            fmt::format("{} is ordered for equal stages, a backward twice as long as a forward and no "
                        "transfers, not for this plan's times; schedule = \"auto\" is",
                        found->name));
    lines.insert(lines.end(), task.cluster.assumptions.begin(), task.cluster.assumptions.end());
    // Doubts of the profile, but for the figures of precisions that play no part.
    const std::string precision_key = "device.precision.";
    for (const std::string& note : task.cluster.instance.notes) {
        const std::size_t at = note.find(precision_key);
        if (at != std::string::npos &&
            !note.substr(at + precision_key.size()).starts_with(core::name_of(plan.precision.compute)))
            continue;
        lines.push_back(task.cluster.instance.name + ": " + note);
    }
    lines.insert(lines.end(), task.graph.assumptions.begin(), task.graph.assumptions.end());
}

void add_rates(Evaluation& evaluation, const StepTask& task, const StepRun& result) {
    const schedule::Plan& plan = task.plan;
    evaluation.step_time = result.step;
    evaluation.breakdown = result.breakdown;
    evaluation.samples_per_second = plan.global_batch() / result.step.value;
    evaluation.tokens_per_second =
        evaluation.samples_per_second * static_cast<double>(task.graph.tokens_per_sample);
    // Backward needs twice the FLOPs of forward: the gradients of inputs and of weights (Megatron-LM, arXiv
    // 2104.04473, appendix).
    constexpr double forward_alone = 1, forward_and_backward = 3;
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    const double forwards = order && order->is_forward_only ? forward_alone : forward_and_backward;
    const core::Flops model_flops =
        model::forward_flops_per_sample(task.graph) * (forwards * plan.global_batch());
    const double ranks = plan.layout.ranks();
    evaluation.model_flops_per_gpu = model_flops / result.step / ranks;
    evaluation.hardware_flops_per_gpu = (model_flops + result.recompute_flops) / result.step / ranks;
    const auto peak = task.cluster.instance.device.peak.find(plan.precision.compute);
    evaluation.mfu =
        peak == task.cluster.instance.device.peak.end() ? 0 : evaluation.model_flops_per_gpu / peak->second;
}

std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster, CostModels* costs,
                                                      const CostConstants& constants) {
    if (!costs) return schedule::complete_partition(plan, graph);
    return complete_partition(
        plan, graph, cluster, *costs,
        [&](const schedule::Partition& partition) -> std::optional<PartitionTrial> {
            schedule::Plan divided = plan;
            divided.partition = partition;
            core::Diagnostics not_simulated;
            const std::optional<Evaluation> evaluation =
                evaluate(graph, cluster, divided, not_simulated, {.constants = constants, .verifies = false});
            if (!evaluation) return std::nullopt;
            return PartitionTrial{evaluation->step_time, evaluation->peak_memory, evaluation->fits};
        });
}

// Gives a plan without a partition the one that it is simulated with; false when there is none.
bool complete(schedule::Plan& plan, const model::ModelGraph& graph, const cluster::Cluster& cluster,
              CostModels* costs, const CostConstants& constants, core::Diagnostics& diagnostics) {
    std::optional<schedule::Partition> partition = complete_partition(plan, graph, cluster, costs, constants);
    if (partition) plan.partition = std::move(*partition);
    else
        diagnostics.error({}, "plan.pipeline_parallel",
                          fmt::format("{} virtual stages for the {} partition units of {}", plan.stages(),
                                      graph.units.size(), graph.name),
                          "use fewer stages: every stage needs at least one unit");
    return partition.has_value();
}

// What a plan leaves to its framework, and what is assumed by that.
std::vector<std::string> run_as_the_framework_does(schedule::Plan& plan, const FrameworkTraits& traits) {
    if (!keep_gathered(traits, plan)) return {};
    return {
        fmt::format("{} gathers parameters once a step in pipelines: sharding = parameters is simulated as "
                    "that of optimizer state",
                    traits.title)};
}

}  // namespace

std::optional<Evaluation> evaluate(const model::ModelGraph& model, const cluster::Cluster& cluster,
                                   const schedule::Plan& given_plan, core::Diagnostics& diagnostics,
                                   const EvaluateOptions& options) {
    schedule::Plan plan = given_plan;
    const schedule::PlannedGraph planned(plan, model);
    const model::ModelGraph& graph = *planned;
    const std::size_t errors_before = diagnostics.error_count();
    check_framework(plan.framework, diagnostics);
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    const FrameworkTraits traits = framework_traits(plan.framework, options.constants);
    Evaluation evaluation;
    evaluation.assumptions = run_as_the_framework_does(plan, traits);
    const int passes = schedule::passes_per_micro_batch(plan);
    core::require(!options.known_graphs || &graph == &model, "graphs are kept of one that stays");
    std::optional<model::SegmentGraphs> own;
    if (!options.known_graphs) own.emplace(graph, passes);
    const model::SegmentGraphs& graphs = own ? *own : options.known_graphs->of(graph, passes);
    core::Diagnostics unpriced;
    std::optional<CostModels> costs =
        options.memory_only && !plan.partition.first_units.empty()
            ? std::nullopt
            : make_cost_models(graph, cluster, plan, options.memory_only ? unpriced : diagnostics,
                               options.constants, options.shares_links ? nullptr : options.known_candidates,
                               options.repetition ? options.repetition->first_operators() : nullptr, &graphs);
    if (!costs && !options.memory_only) return std::nullopt;
    if (costs) costs->counts_hosts = options.counts_hosts;
    if (!complete(plan, graph, cluster, costs ? &*costs : nullptr, options.constants, diagnostics))
        return std::nullopt;
    if (options.memory_only) costs.reset();
    const int ranks_on_a_device = (plan.layout.ranks() + cluster.device_count() - 1) / cluster.device_count();
    std::size_t simulated_instructions = 0;
    std::optional<ContentionFinder> finder;
    if (costs) finder.emplace(costs->communication, true);
    const StepTask task{graph,
                        graphs,
                        cluster,
                        plan,
                        options,
                        costs ? &*costs : nullptr,
                        finder ? &*finder : nullptr,
                        costs && traits.blocks_on_transfers,
                        framework_memory(plan.framework, options.constants),
                        cluster.instance.device.memory / ranks_on_a_device,
                        &simulated_instructions};

    std::optional<StepRun> result;
    Extrapolation extrapolation;
    bool settles_late = false;
    const bool may_extrapolate = options.most_micro_batches && !options.keeps_timeline;
    if (may_extrapolate)
        result =
            run_from_one(task, plan.micro_batches, *options.most_micro_batches, extrapolation, settles_late);
    if (may_extrapolate && !result && !settles_late)
        result = run_extrapolated(task, plan.micro_batches, *options.most_micro_batches, extrapolation);
    if (!result) result = run_step(task, plan.micro_batches, diagnostics);
    if (!result) return std::nullopt;

    evaluation.simulated_instructions = simulated_instructions;
    evaluation.available_memory = task.available;
    evaluation.memory = result->memory;
    judge_memory(evaluation);
    if (!evaluation.fits) evaluation.out_of_memory = result->out_of_memory;
    judge_host_memory(evaluation, task, result->host_memory);
    evaluation.rate = cluster::price(cluster);
    evaluation.is_extrapolated = extrapolation.from > 0;
    evaluation.settled_at = extrapolation.from;
    evaluation.settles_late = settles_late && !evaluation.is_extrapolated;
    evaluation.overflows_early = result->overflows_early;
    if (evaluation.is_extrapolated) evaluation.assumptions.push_back(extrapolation.how);
    if (options.step_only) {
        evaluation.step_time = result->step;
        return evaluation;
    }
    add_assumptions(evaluation, task, *result);
    if (options.memory_only) return evaluation;

    add_rates(evaluation, task, *result);
    if (!options.keeps_timeline) return evaluation;
    evaluation.timeline = std::move(result->timeline);
    evaluation.critical_performer = result->critical_performer;
    evaluation.active_from = std::move(result->active_from);
    evaluation.memory_timeline = std::move(result->memory_timeline);
    evaluation.program = std::move(result->program);
    return evaluation;
}

std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster,
                                                      const CostConstants& constants) {
    if (!plan.partition.first_units.empty()) return plan.partition;
    const schedule::PlannedGraph planned(plan, graph);
    core::Diagnostics unpriced;
    std::optional<CostModels> costs = make_cost_models(*planned, cluster, plan, unpriced, constants);
    return complete_partition(plan, *planned, cluster, costs ? &*costs : nullptr, constants);
}

core::Value to_value(const Evaluation& evaluation, const model::ModelGraph& graph,
                     const schedule::Plan& plan) {
    core::Value value = core::Value::table();
    value["model"] = graph.name;
    value["ranks"] = plan.layout.ranks();
    value["global_batch"] = plan.global_batch();
    value["step_time_s"] = evaluation.step_time.value;
    value["samples_per_s"] = evaluation.samples_per_second;
    value["tokens_per_s"] = evaluation.tokens_per_second;
    value["model_tflops_per_gpu"] = core::to_teraflops_per_second(evaluation.model_flops_per_gpu);
    value["hardware_tflops_per_gpu"] = core::to_teraflops_per_second(evaluation.hardware_flops_per_gpu);
    value["mfu"] = evaluation.mfu;
    value["fits"] = evaluation.fits;
    value["peak_memory_gib"] = core::to_gibibytes(evaluation.peak_memory);
    value["available_memory_gib"] = core::to_gibibytes(evaluation.available_memory);
    if (evaluation.host_memory.value > 0) {
        value["host_memory_gib"] = core::to_gibibytes(evaluation.host_memory);
        value["available_host_memory_gib"] =
            evaluation.available_host_memory
                ? core::Value(core::to_gibibytes(*evaluation.available_host_memory))
                : core::Value();
    }
    value["tightest"] = evaluation.tightest;
    core::Value memory = core::Value::array();
    for (std::size_t i = 0; i < evaluation.memory.size(); ++i) {
        const ClassMemory& part = evaluation.memory[i];
        core::Value row = core::Value::table();
        row["rank_class"] = i;
        row["pipeline_rank"] = part.pipeline;
        // The contract's key holds one number: the first virtual stage of the class; all of them are in
        // `stages`.
        row["stage"] = part.stages.empty() ? -1 : part.stages.front();
        row["stages"] = part.stages;
        row["peak_gib"] = core::to_gibibytes(part.peak);
        row["parameters_gib"] = core::to_gibibytes(part.parameters);
        row["gradients_gib"] = core::to_gibibytes(part.gradients);
        row["optimizer_gib"] = core::to_gibibytes(part.optimizer);
        row["activations_gib"] = core::to_gibibytes(part.activations);
        row["workspace_gib"] = core::to_gibibytes(part.workspace);
        row["overhead_gib"] = core::to_gibibytes(part.overhead);
        row["reserved_gib"] = core::to_gibibytes(part.reserved);
        row["process_gib"] = core::to_gibibytes(part.process);
        memory.append(std::move(row));
    }
    value["memory"] = std::move(memory);
    value["out_of_memory"] = evaluation.out_of_memory ? to_value(*evaluation.out_of_memory) : core::Value();
    core::Value breakdown = core::Value::table();
    for (const BreakdownPart& part : breakdown_parts())
        breakdown[part.name] = (evaluation.breakdown.*part.part).value;
    value["breakdown_s"] = std::move(breakdown);
    value["usd_per_hour"] = core::to_dollars_per_hour(evaluation.rate);
    value["usd_per_million_samples"] =
        evaluation.samples_per_second > 0 ? evaluation.rate.value * 1e6 / evaluation.samples_per_second : 0.0;
    value["assumptions"] = evaluation.assumptions;
    return value;
}

}  // namespace sim
