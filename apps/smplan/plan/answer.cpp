#include "apps/smplan/plan/answer.h"

#include <algorithm>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "core/parallel.h"
#include "planner/explain.h"
#include "schedule/plan/explicit_order.h"

namespace apps {

double hours_of(core::Seconds time) {
    constexpr double seconds_an_hour = 3600;
    return time.value / seconds_an_hour;
}

core::Value row_of(const planner::RankedPlan& ranked, std::size_t rank, const planner::Target& target,
                   const sim::PredictionIntervals& intervals) {
    const schedule::Plan& plan = ranked.plan;
    const sim::Evaluation& evaluation = ranked.evaluation;
    const bool has_price = cluster::find_price(target.cluster.instance, "on-demand").has_value();
    core::Value row = core::Value::table();
    row["rank"] = rank;
    row["target"] = target.cluster.instance.name;
    row["nodes"] = target.cluster.nodes;
    row["tensor_parallel"] = plan.layout.tensor;
    row["pipeline_parallel"] = plan.layout.pipeline;
    row["virtual_stages"] = plan.virtual_stages;
    row["data_parallel"] = plan.layout.replicas();
    row["sharding"] = schedule::name_of(plan.sharding);
    row["shard_degree"] = plan.effective_shard_degree();
    row["expert_parallel"] = plan.layout.expert;
    row["context_parallel"] = plan.layout.context;
    row["sequence_parallel"] = plan.has_sequence_parallelism();
    row["micro_batch"] = plan.micro_batch;
    row["micro_batches"] = plan.micro_batches;
    row["precision"] = core::name_of(plan.precision.compute);
    row["schedule"] = schedule::schedule_label(plan.schedule);
    if (plan.passes_per_micro_batch() > 1) row["segments"] = plan.passes_per_micro_batch();
    row["recompute"] = schedule::name_of(plan.recompute);
    row["offload"] = schedule::name_of(plan.offload);
    if (plan.offload != schedule::Offload::none)
        row["activation_loading_horizon"] = plan.activation_loading_horizon;
    if (evaluation.host_memory.value > 0) row["host_memory_gib"] = core::to_gibibytes(evaluation.host_memory);
    row["partition"] = plan.partition.first_units;
    row["step_time_s"] = evaluation.step_time.value;
    sim::add_to(row, intervals, evaluation);
    row["samples_per_s"] = evaluation.samples_per_second;
    row["tokens_per_s"] = evaluation.tokens_per_second;
    row["mfu"] = evaluation.mfu;
    row["peak_memory_gib"] = core::to_gibibytes(evaluation.peak_memory);
    row["available_memory_gib"] = core::to_gibibytes(evaluation.available_memory);
    row["usd_per_hour"] = has_price ? core::Value(core::to_dollars_per_hour(evaluation.rate)) : core::Value();
    row["usd_total"] =
        has_price && ranked.training_cost ? core::Value(ranked.training_cost->value) : core::Value();
    row["training_hours"] =
        ranked.training_time ? core::Value(hours_of(*ranked.training_time)) : core::Value();
    row["bound_by"] = ranked.bound_by;
    row["why"] = ranked.why;
    return row;
}

namespace {

// How far the best value lies above its lower bound; nothing without either, or where values are zero.
std::optional<double> gap_pct(const planner::SearchAccount& account) {
    if (!account.lower_bound || !account.best_value || *account.best_value <= 0) return std::nullopt;
    return 100 * (*account.best_value - *account.lower_bound) / *account.best_value;
}

// What the search varies, and what it sets by a rule: of the latter nothing is proven.
core::Value axes_of(const planner::SearchAccount& account) {
    core::Value axes = core::Value::table();
    axes["covered"] = planner::covered_axes(account);
    core::Value fixed = core::Value::table();
    for (const auto& [axis, rule] : planner::fixed_axes(account)) fixed[axis] = rule;
    axes["fixed"] = std::move(fixed);
    return axes;
}

}  // namespace

core::Value account_of(const planner::SearchAccount& account, planner::Objective objective) {
    core::Value value = core::Value::table();
    value["space"] = account.space;
    value["evaluated"] = account.evaluated;
    core::Value rejected = core::Value::table();
    for (const auto& [reason, count] : account.rejected)
        rejected[std::string(planner::reason_of(reason))] = count;
    value["rejected"] = std::move(rejected);
    value["pruned"] = account.pruned;
    value["unvisited"] = account.unvisited;
    value["seconds"] = account.seconds.value;
    value["cpu_seconds"] = account.cpu_seconds.value;
    value["evaluations_per_s"] = account.evaluations_per_second;
    value["proven_optimal"] = account.is_proven_optimal;
    // The contract's key is a time; for other objectives the bound is in their own unit, under its own name.
    const bool is_time =
        objective == planner::Objective::speed || objective == planner::Objective::time_to_train;
    const core::Value bound = account.lower_bound ? core::Value(*account.lower_bound) : core::Value();
    value["lower_bound_s"] = is_time ? bound : core::Value();
    if (!is_time)
        value[objective == planner::Objective::memory ? "lower_bound_bytes" : "lower_bound_usd_per_step"] =
            bound;
    value["gap_pct"] = account.lower_bound ? core::Value(gap_pct(account).value_or(0)) : core::Value();
    core::Value partitions = core::Value::table();
    partitions["excluded"] = account.partitions.excluded;
    partitions["walked"] = account.partitions.walked;
    partitions["simulated"] = account.partitions.simulated;
    partitions["open"] = account.partitions.open;
    value["partitions"] = std::move(partitions);
    value["bounded_targets"] = account.bounded_targets;
    value["axes"] = axes_of(account);
    return value;
}

void print(const Request& request, const model::ModelGraph& graph, const planner::SearchResult& result,
           const std::vector<planner::Target>& targets,
           const std::vector<sim::PredictionIntervals>& intervals, std::ostream& out) {
    const bool has_tokens = request.search.tokens.has_value();
    out << fmt::format(
        "{}, {}global batch {}\n", graph.name,
        graph.tokens_per_sample > 0 ? fmt::format("{} tokens a sample, ", graph.tokens_per_sample) : "",
        request.search.global_batch);
    if (const std::optional<double> gap = gap_pct(result.account);
        gap && !result.account.is_proven_optimal && *gap > 0)
        out << fmt::format(
            "  stopped before everything was looked at: the best plan may be better by up to "
            "{:.1f} %\n",
            *gap);
    for (const std::string& line : request.assumptions) out << "  assumed: " << line << '\n';
    // Columns of axes that no plan of the list uses are left out.
    const auto any = [&](auto degree) {
        return std::any_of(result.plans.begin(), result.plans.end(),
                           [&](const planner::RankedPlan& p) { return degree(p.plan.layout) > 1; });
    };
    const bool has_context = any([](const schedule::ParallelLayout& layout) { return layout.context; });
    const bool has_experts = any([](const schedule::ParallelLayout& layout) { return layout.expert; });
    const bool has_offload =
        std::any_of(result.plans.begin(), result.plans.end(),
                    [](const planner::RankedPlan& p) { return p.plan.offload != schedule::Offload::none; });
    const auto offload = [&](const std::string& text) {
        return has_offload ? fmt::format(" {:<9}", text) : std::string();
    };
    const auto precision = [&](std::string_view text) {
        return request.limits.precisions.size() > 1 ? fmt::format(" {:<9}", text) : std::string();
    };
    const auto parts_of_data = [&](const auto& context, const auto& expert) {
        return (has_context ? fmt::format(" {:>3}", context) : std::string()) +
               (has_experts ? fmt::format(" {:>3}", expert) : std::string());
    };
    out << fmt::format(
        "\n  {:>2}  {:<22} {:>3} {:>3} {:>4}{} {:<20} {:<16} {:>9} {:<9}{}{} {:>10} {:>6} {:>10} {:>9}{}  "
        "{}\n",
        "#", "target", "TP", "PP", "DP", parts_of_data("CP", "EP"), "schedule", "sharding", "batch",
        "recompute", offload("offload"), precision("precision"), "step", "MFU", "peak", "USD/h",
        has_tokens ? "   hours       USD" : "", "bound by");
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
        const planner::RankedPlan& ranked = result.plans[i];
        const cluster::Cluster& cluster = targets[ranked.candidate].cluster;
        const schedule::Plan& plan = ranked.plan;
        std::string schedule =
            plan.layout.pipeline == 1 ? "-"
            : plan.passes_per_micro_batch() > 1
                ? fmt::format("{} /{}", schedule::schedule_label(plan.schedule),
                              plan.passes_per_micro_batch())
            : plan.virtual_stages > 1
                ? fmt::format("{} x{}", schedule::schedule_label(plan.schedule), plan.virtual_stages)
                : schedule::schedule_label(plan.schedule);
        std::string sharding(schedule::name_of(plan.sharding));
        if (plan.sharding != schedule::Sharding::none)
            sharding += fmt::format("/{}", plan.effective_shard_degree());
        std::string total = ranked.training_time && ranked.training_cost
                                ? fmt::format(" {:>7.0f} {:>9.0f}", hours_of(*ranked.training_time),
                                              ranked.training_cost->value)
                                : "";
        out << fmt::format(
            "  {:>2}  {:<22} {:>3} {:>3} {:>4}{} {:<20} {:<16} {:>9} {:<9}{}{} {:>10} {:>5.1f}% {:>10} "
            "{:>9.2f}{}  {}\n",
            i + 1, fmt::format("{} x {}", cluster.nodes, cluster.instance.name), plan.layout.tensor,
            plan.layout.pipeline, plan.layout.replicas(),
            parts_of_data(plan.layout.context, plan.layout.expert), schedule, sharding,
            fmt::format("{} x {}", plan.micro_batch, plan.micro_batches), schedule::name_of(plan.recompute),
            offload(
                plan.offload == schedule::Offload::none
                    ? "-"
                    : fmt::format("{}/{}", schedule::name_of(plan.offload), plan.activation_loading_horizon)),
            precision(core::name_of(plan.precision.compute)), core::format(ranked.evaluation.step_time),
            100 * ranked.evaluation.mfu, core::format(ranked.evaluation.peak_memory),
            core::to_dollars_per_hour(ranked.evaluation.rate), total, ranked.bound_by);
    }
    if (!result.plans.empty()) {
        out << "\n  why: " << result.plans.front().why << '\n';
        out << fmt::format("  its step, 80 %: {} to {}\n", core::format(intervals.front().step.low),
                           core::format(intervals.front().step.high));
    }
    const planner::SearchAccount& account = result.account;
    out << fmt::format("\n  {} plans: {} simulated", account.space, account.evaluated);
    for (const auto& [reason, count] : account.rejected)
        out << fmt::format(", {} rejected ({})", count, planner::reason_of(reason));
    out << fmt::format(", {} excluded by their bounds", account.pruned);
    if (account.unvisited > 0) out << fmt::format(", {} not reached in time", account.unvisited);
    out << fmt::format("; {:.2f} s{}\n", account.seconds.value,
                       account.is_proven_optimal
                           ? fmt::format("; the first is the best of them all under this model, {}",
                                         account.covers_partitions
                                             ? "with every partition of plans that have one stage a rank"
                                             : "each with the partition that balances its stages")
                           : "");
    if (!account.lower_bound)
        out << "  no lower bound: the order of the first was searched, and bounds are of registered "
               "schedules\n";
    else if (const std::optional<double> gap = gap_pct(account); gap && !account.is_proven_optimal)
        out << fmt::format("  gap to the lower bound: {:.1f} %\n", *gap);
}

core::Value document_of(const Request& request, const model::ModelGraph& graph,
                        const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                        const std::vector<sim::PredictionIntervals>& intervals,
                        const std::optional<CostOfLimits>& limits) {
    core::Value document = core::Value::table();
    document["model"] = graph.name;
    document["global_batch"] = request.search.global_batch;
    core::Value plans = core::Value::array();
    for (std::size_t i = 0; i < result.plans.size(); ++i)
        plans.append(row_of(result.plans[i], i + 1, targets[result.plans[i].candidate], intervals[i]));
    document["plans"] = std::move(plans);
    document["search"] = account_of(result.account, request.search.objective);
    document["assumptions"] = request.assumptions;
    if (limits) document["limits"] = to_value(*limits, request.limits);
    if (request.out_path) document["out"] = *request.out_path;
    return document;
}

std::vector<sim::PredictionIntervals> judge(planner::SearchResult& result, const model::ModelGraph& graph,
                                            const std::vector<planner::Target>& targets,
                                            const sim::Posterior& posterior, int threads) {
    std::vector<sim::PredictionIntervals> intervals(result.plans.size());
    core::for_each_in_parallel(result.plans.size(), threads, [&](std::size_t i, int) {
        planner::RankedPlan& ranked = result.plans[i];
        const core::Seconds before = ranked.evaluation.step_time;
        sim::apply_site_effects(ranked.evaluation, posterior);
        const double factor = ranked.evaluation.step_time / before;
        if (ranked.training_time) *ranked.training_time *= factor;
        if (ranked.training_cost) *ranked.training_cost *= factor;
        intervals[i] = sim::intervals_of(ranked.evaluation, graph, targets[ranked.candidate].cluster,
                                         ranked.plan, posterior);
    });
    return intervals;
}

}  // namespace apps
