#include "api/plan/answer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/parallel.h"
#include "planner/explain.h"
#include "planner/fixed_axes.h"
#include "planner/search_space.h"
#include "schedule/plan/explicit_order.h"

namespace api {

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
    row["expert_parallel"] = plan.layout.expert_ranks();
    if (plan.layout.spreads_experts_over_tensor())
        row["expert_tensor_parallel"] = plan.layout.expert_tensor();
    row["context_parallel"] = plan.layout.context;
    if (plan.layout.context > 1) row["context_communication"] = schedule::name_of(plan.context_communication);
    row["sequence_parallel"] = plan.has_sequence_parallelism();
    if (plan.tensor_overlap > 1) row["tensor_overlap"] = plan.tensor_overlap;
    row["gradient_bucket_mib"] = plan.gradient_bucket / core::mebibytes(1);
    row["micro_batch"] = plan.micro_batch;
    row["micro_batches"] = plan.micro_batches;
    row["precision"] = core::name_of(plan.precision.compute);
    row["schedule"] = schedule::schedule_label(plan.schedule);
    if (const int group = plan.parameters<schedule::GroupParameters>().group_size; group > 0)
        row["group_size"] = group;
    if (plan.passes_per_micro_batch() > 1) row["segments"] = plan.passes_per_micro_batch();
    row["recompute"] = schedule::name_of(plan.recompute);
    if (plan.recompute_layers > 0) row["recompute_layers"] = plan.recompute_layers;
    if (plan.recomputes_by_stage()) row["recompute_layers"] = plan.recompute_layers_by_stage;
    if (plan.runs_chosen_modules_again())
        row["recompute_modules"] = schedule::names_of(plan.recompute_modules);
    row["offload"] = schedule::name_of(plan.offload);
    if (plan.offload != schedule::Offload::none)
        row["activation_loading_horizon"] = plan.activation_loading_horizon;
    if (plan.updates_on_hosts()) row["optimizer_offload"] = schedule::name_of(plan.optimizer_offload);
    if (plan.keeps_parameters_on_hosts())
        row["parameter_offload"] = schedule::name_of(plan.parameter_offload);
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
    axes["covered"] = planner::covered_axes(account.covers_partitions);
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
    value["partly_recomputed"] = account.partly_recomputed;
    value["in_rings"] = account.in_rings;
    value["refinements"] = account.refinements;
    value["bounded_targets"] = account.bounded_targets;
    value["axes"] = axes_of(account);
    return value;
}

namespace {

std::string schedule_text(const schedule::Plan& plan) {
    const std::string label(schedule::schedule_label(plan.schedule));
    if (plan.layout.pipeline == 1) return "-";
    if (plan.passes_per_micro_batch() > 1) return fmt::format("{} /{}", label, plan.passes_per_micro_batch());
    return plan.virtual_stages > 1 ? fmt::format("{} x{}", label, plan.virtual_stages) : label;
}

std::string sharding_text(const schedule::Plan& plan) {
    std::string text(schedule::name_of(plan.sharding));
    if (plan.sharding != schedule::Sharding::none) text += fmt::format("/{}", plan.effective_shard_degree());
    return text;
}

std::string offload_text(const schedule::Plan& plan) {
    const std::string activations =
        plan.offload == schedule::Offload::none
            ? "-"
            : fmt::format("{}/{}", schedule::name_of(plan.offload), plan.activation_loading_horizon);
    if (!plan.updates_on_hosts()) return activations;
    const char* const state = plan.keeps_parameters_on_hosts() ? "all state" : "optimizer";
    return plan.offload == schedule::Offload::none ? state : activations + ", " + state;
}

// Axes that a plan of the list uses.
struct Shown {
    bool context = false, experts = false, pieces = false, offload = false, precision = false;
};

Shown shown_of(const std::vector<TableRow>& rows, const Request& request) {
    Shown shown{.precision = request.limits.precisions.size() > 1};
    const schedule::Precision& first = rows.front().ranked->plan.precision;
    for (const TableRow& row : rows) {
        const schedule::Plan& plan = row.ranked->plan;
        shown.context = shown.context || plan.layout.context > 1;
        shown.experts = shown.experts || plan.layout.expert_ranks() > 1;
        shown.pieces = shown.pieces || plan.tensor_overlap > 1;
        shown.offload = shown.offload || plan.offload != schedule::Offload::none || plan.updates_on_hosts();
        shown.precision = shown.precision || plan.precision.compute != first.compute;
    }
    return shown;
}

std::string experts_text(const schedule::ParallelLayout& layout) {
    return fmt::format("{}{}", layout.expert_ranks(), layout.spreads_experts_over_tensor() ? " whole" : "");
}

std::vector<std::string> cells_of(const TableRow& row, const Shown& shown) {
    const planner::RankedPlan& ranked = *row.ranked;
    const sim::Evaluation& evaluation = ranked.evaluation;
    const schedule::Plan& plan = ranked.plan;
    const schedule::ParallelLayout& layout = plan.layout;
    const auto when = [](bool is_there, const auto& cell) {
        return is_there ? fmt::format("{}", cell) : std::string();
    };
    const double price = core::to_dollars_per_hour(evaluation.rate);
    const bool has_totals = ranked.training_time && ranked.training_cost;
    return {row.label,
            fmt::format("{}", layout.tensor),
            fmt::format("{}", layout.pipeline),
            fmt::format("{}", layout.replicas()),
            when(shown.context, planner::context_text(plan)),
            when(shown.experts, experts_text(layout)),
            when(shown.pieces, plan.tensor_overlap),
            schedule_text(plan),
            fmt::format("{} x {}", plan.micro_batch, plan.micro_batches),
            core::format(evaluation.step_time),
            fmt::format("{:.1f}%", 100 * evaluation.mfu),
            core::format(evaluation.peak_memory),
            sharding_text(plan),
            schedule::recomputation_text(plan),
            when(shown.offload, offload_text(plan)),
            when(shown.precision, core::name_of(plan.precision.compute)),
            fmt::format("{} x {}", row.cluster->nodes, row.cluster->instance.name),
            price > 0 ? fmt::format("{:.2f}", price) : "",
            has_totals ? core::with_thousands(hours_of(*ranked.training_time)) : "",
            has_totals ? core::with_thousands(ranked.training_cost->value) : "",
            ranked.bound_by};
}

}  // namespace

std::string table_of(const std::vector<TableRow>& rows, const Request& request) {
    // A column without any cell is left out: axes that no plan of the list uses, unknown prices.
    core::TextTable table({rows.front().heading,
                           "TP",
                           "PP",
                           "DP",
                           "CP",
                           "EP",
                           "pieces",
                           "schedule",
                           "batch",
                           "step",
                           "MFU",
                           "peak",
                           "sharding",
                           "recompute",
                           "offload",
                           "precision",
                           "target",
                           "USD/h",
                           "hours",
                           "USD",
                           "bound by"});
    const Shown shown = shown_of(rows, request);
    for (const TableRow& row : rows) table.add(cells_of(row, shown));
    return '\n' + table.text(request.width);
}

std::string headline(const Request& request, const model::ModelGraph& graph) {
    return fmt::format(
        "{}, {}global batch {}\n", graph.name,
        graph.tokens_per_sample > 0 ? fmt::format("{} tokens a sample, ", graph.tokens_per_sample) : "",
        request.search.global_batch);
}

// What the table does not show of the first plan, where it was refined.
std::string refinement_text(const schedule::Plan& plan, const schedule::Plan& base) {
    std::vector<std::string> words;
    if (!(plan.gradient_bucket == base.gradient_bucket))
        words.push_back("gradient buckets of " + core::format(plan.gradient_bucket));
    if (const int group = plan.parameters<schedule::GroupParameters>().group_size; group > 0)
        words.push_back(fmt::format("groups of {} micro-batches", group));
    return words.empty()
               ? std::string()
               : "  the first has " + words.front() + (words.size() > 1 ? " and " + words.back() : "") + '\n';
}

std::string text_of(const planner::SearchAccount& account) {
    std::string out = fmt::format("\n  {} plans: {} simulated", core::with_thousands(account.space),
                                  core::with_thousands(account.evaluated));
    for (const auto& [reason, count] : account.rejected)
        out += fmt::format(", {} rejected ({})", core::with_thousands(count), planner::reason_of(reason));
    out += fmt::format(", {} excluded by their bounds", core::with_thousands(account.pruned));
    if (account.unvisited > 0)
        out += fmt::format(", {} not reached in time", core::with_thousands(account.unvisited));
    out += fmt::format("; {:.2f} s{}\n", account.seconds.value,
                       account.is_proven_optimal
                           ? fmt::format("; the first is the best of them all under this model, {}",
                                         account.covers_partitions
                                             ? "with every partition of plans that have one stage a rank"
                                             : "each with the partition that balances its stages")
                           : "");
    if (!account.lower_bound)
        out +=
            "  no lower bound: the order of the first was searched, and bounds are of registered "
            "schedules\n";
    else if (const std::optional<double> gap = gap_pct(account); gap && !account.is_proven_optimal)
        out += fmt::format("  gap to the lower bound: {:.1f} %{}\n", *gap,
                           *gap > 0 ? "" : ", but for moves of cuts that were not tried");
    return out;
}

// In the first line of an answer that proves nothing: by how much the best plan may be better.
std::string stopped_text(const planner::SearchAccount& account) {
    const std::optional<double> gap = gap_pct(account);
    if (!gap || account.is_proven_optimal) return {};
    return "  stopped before everything was looked at: " +
           (*gap > 0 ? fmt::format("the best plan may be better by up to {:.1f} %\n", *gap)
                     : "no bound leaves room for a better plan, but not every move of cuts was tried\n");
}

// What runs plans behind the first and not the first, each by the first of them: "2 (+1.3 %) in megatron".
std::string others_run_text(const model::ModelGraph& graph, const planner::SearchResult& result,
                            const std::vector<planner::Target>& targets, const RunsIn& first) {
    std::set<std::string> seen(first.runners.begin(), first.runners.end());
    std::string text;
    for (std::size_t p = 1; p < result.plans.size() && seen.size() < runners().size(); ++p) {
        const planner::RankedPlan& ranked = result.plans[p];
        std::vector<std::string> more;
        for (const std::string& name : runs_in(graph, targets[ranked.candidate].cluster, ranked.plan).runners)
            if (seen.insert(name).second) more.push_back(name);
        if (!more.empty())
            text +=
                fmt::format("{}{} (+{:.1f} %) in {}", text.empty() ? "" : ", ", p + 1,
                            (ranked.value / result.plans.front().value - 1) * 100, core::list_in_words(more));
    }
    return text.empty() ? text : "  behind it: " + text + '\n';
}

std::string text_of(const Request& request, const model::ModelGraph& graph,
                    const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                    const std::vector<sim::PredictionIntervals>& intervals, const SecondLook& look,
                    const Beside& beside) {
    std::string out = headline(request, graph);
    out += stopped_text(result.account);
    out += text_of(beside);
    const planner::RankedPlan& best = result.plans.front();
    if (!request.runner) {
        const RunsIn runs = runs_in(graph, targets[best.candidate].cluster, best.plan);
        out += "  " + text_of(runs) + '\n' + others_run_text(graph, result, targets, runs);
    }
    for (const std::string& line : request.assumptions) out += "  assumed: " + line + '\n';
    std::vector<TableRow> rows;
    for (const planner::RankedPlan& ranked : result.plans)
        rows.push_back({"#", std::to_string(rows.size() + 1), &ranked, &targets[ranked.candidate].cluster});
    out += table_of(rows, request) + '\n' + refinement_text(best.plan, targets[best.candidate].base);
    out += "  why: " + best.why + '\n';
    out += fmt::format("  its step, 80 %: {} to {}\n", core::format(intervals.front().step.low),
                       core::format(intervals.front().step.high));
    out += text_of(look, result, targets);
    return out + text_of(result.account);
}

core::Value document_of(const Request& request, const model::ModelGraph& graph,
                        const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                        const std::vector<sim::PredictionIntervals>& intervals, const SecondLook& look,
                        const std::optional<CostOfLimits>& limits, const Beside& beside) {
    core::Value document = core::Value::table();
    document["model"] = graph.name;
    document["global_batch"] = request.search.global_batch;
    core::Value plans = core::Value::array();
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
        const planner::RankedPlan& ranked = result.plans[i];
        const planner::Target& target = targets[ranked.candidate];
        core::Value row = row_of(ranked, i + 1, target, intervals[i]);
        if (!request.runner && i > 0) row["runs_in"] = runs_in(graph, target.cluster, ranked.plan).runners;
        plans.append(std::move(row));
    }
    document["plans"] = std::move(plans);
    add_to(document, look, targets);
    document["search"] = account_of(result.account, request.search.objective);
    document["assumptions"] = request.assumptions;
    const planner::RankedPlan& best = result.plans.front();
    if (request.runner) document["for"] = request.runner->name;
    else add_to(document, runs_in(graph, targets[best.candidate].cluster, best.plan));
    if (limits) document["limits"] = to_value(*limits, request.limits);
    add_to(document, beside);
    if (request.out_path) document["out"] = *request.out_path;
    return document;
}

std::vector<sim::PredictionIntervals> judge(planner::SearchResult& result, const model::ModelGraph& graph,
                                            const std::vector<planner::Target>& targets,
                                            const sim::Posterior& posterior, int threads) {
    std::vector<sim::PredictionIntervals> intervals(result.plans.size());
    // What takes longest first, so that no thread is left with it alone.
    std::vector<std::size_t> order(result.plans.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return result.plans[a].evaluation.simulated_instructions >
               result.plans[b].evaluation.simulated_instructions;
    });
    core::for_each_in_parallel(order.size(), threads, [&](std::size_t o, int) {
        const std::size_t i = order[o];
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

}  // namespace api
