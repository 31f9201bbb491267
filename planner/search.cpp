#include "planner/search.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "core/diagnostics.h"
#include "core/parallel.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/order/plan_order.h"
#include "planner/pareto.h"
#include "planner/search/search_state.h"
#include "schedule/plan/partition.h"

namespace planner {

int simulated_micro_batches(const schedule::Plan& plan) {
    constexpr int least = 8, rounds = 8;
    return std::max(least, rounds * plan.layout.pipeline);
}

bool is_better(const RankedPlan& a, const RankedPlan& b) {
    return std::pair(a.value, a.evaluation.step_time) < std::pair(b.value, b.evaluation.step_time);
}

bool is_run(const Target& target, const schedule::Plan& plan) {
    return !target.runnable || !target.runnable->takes || target.runnable->takes(plan);
}

sim::EvaluateOptions quick_options(const schedule::Plan& plan, const sim::CostConstants& constants) {
    sim::EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = simulated_micro_batches(plan);
    options.verifies = false;
    return options;
}

namespace {

sim::Evaluation evaluate_again(const RankedPlan& plan, const model::ModelGraph& graph,
                               const std::vector<Target>& targets, const sim::EvaluateOptions& options) {
    core::Diagnostics known;
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(graph, targets[plan.candidate].cluster, plan.plan, known, options);
    core::require(evaluation.has_value(), "a plan that was simulated can be simulated again");
    return std::move(*evaluation);
}

}  // namespace

sim::Evaluation with_breakdown(const RankedPlan& plan, const model::ModelGraph& graph,
                               const std::vector<Target>& targets, const sim::CostConstants& constants) {
    return evaluate_again(plan, graph, targets, quick_options(plan.plan, constants));
}

namespace {

// Share by which the sums of one step may differ.
constexpr double rounding_of_sums = 1e-9;
// Fitting plans are looked for among so many of least memory; the others need more.
constexpr std::size_t most_fitting_tries = 8;

}  // namespace

// The plan with an order of its own, where that is better by the objective.
void Search::search_order(RankedPlan& ranked, core::Diagnostics& diagnostics) const {
    if (ranked.plan.layout.pipeline == 1) return;
    const cluster::Cluster& cluster = targets_[ranked.candidate].cluster;
    std::optional<OrderedPlan> ordered = with_searched_order(graph_, cluster, ranked.plan, diagnostics);
    if (!ordered || !ordered->evaluation || !ordered->evaluation->fits) return;
    RankedPlan changed;
    changed.candidate = ranked.candidate;
    changed.plan = ordered->plan;
    changed.order = ordered->explanation;
    settle(changed, std::move(*ordered->evaluation));
    if (is_better(changed, ranked)) ranked = std::move(changed);
}

void Search::search_orders(core::Diagnostics& diagnostics) {
    std::vector<RankedPlan>& plans = result_.plans;
    for (RankedPlan& ranked : plans)
        if (!is_stopped()) search_order(ranked, diagnostics);
    std::stable_sort(plans.begin(), plans.end(), is_better);
    // Plans that differed in their schedule alone may have come to one order.
    plans.erase(std::unique(plans.begin(), plans.end(),
                            [](const RankedPlan& a, const RankedPlan& b) {
                                return a.candidate == b.candidate && a.plan == b.plan;
                            }),
                plans.end());
}

// What is said of the first plan is what smsim says: its whole step, verified. Bounds were held against
// values of steps that may have been extrapolated: where one of them was too short, what lies between it and
// the true one was excluded without a reason, and stays open.
void Search::simulate_whole() {
    std::vector<RankedPlan>& plans = result_.plans;
    const auto simulated_whole = [&](const RankedPlan& plan) {
        return evaluate_again(plan, graph_, targets_, {.constants = request_.constants});
    };
    // The first mostly stays it. Where a front is kept, all others were broken down when they were found.
    std::optional<sim::Evaluation> whole;                             // of the first
    std::vector<std::optional<sim::Evaluation>> parts(plans.size());  // of the others
    const std::size_t told = request_.keeps_front ? std::min<std::size_t>(plans.size(), 1) : plans.size();
    core::for_each_in_parallel(told, request_.threads, [&](std::size_t i, int) {
        if (i == 0) whole = simulated_whole(plans[i]);
        else parts[i] = with_breakdown(plans[i], graph_, targets_, request_.constants);
    });
    std::vector<bool> is_whole(plans.size(), false);
    while (!plans.empty() && !is_whole.front()) {
        RankedPlan& plan = plans.front();
        const double before = plan.value;
        settle(plan, whole ? std::move(*whole) : simulated_whole(plan));
        whole.reset();
        parts.front().reset();
        const bool is_allowed =
            plan.evaluation.fits && !constraint_violated(plan.candidate, plan.evaluation.step_time);
        if (!is_allowed || plan.value > before * (1 + rounding_of_sums)) leave_open(before);
        is_whole.front() = true;
        if (!is_allowed) {
            plans.erase(plans.begin());
            parts.erase(parts.begin());
            is_whole.erase(is_whole.begin());
            continue;
        }
        // It stays the first, or comes behind what is better now.
        for (std::size_t place = 0; place + 1 < plans.size() && is_better(plans[place + 1], plans[place]);
             ++place) {
            std::swap(plans[place], plans[place + 1]);
            std::swap(parts[place], parts[place + 1]);
            std::vector<bool>::swap(is_whole[place], is_whole[place + 1]);
        }
    }
    for (std::size_t i = 0; i < plans.size(); ++i)
        if (parts[i]) settle(plans[i], std::move(*parts[i]));
}

void Search::explain_plans() {
    for (std::size_t i = 0; i < result_.plans.size(); ++i) {
        RankedPlan& plan = result_.plans[i];
        plan.bound_by = bound_by(plan.evaluation);
        const RankedPlan* other = result_.plans.size() < 2 ? nullptr : &result_.plans[i == 0 ? 1 : 0];
        plan.why = compare(plan, other, i == 0, targets_, request_.objective);
    }
}

// `registered`: the best value of a registered schedule.
void Search::judge_bounds(double registered) {
    SearchAccount& account = result_.account;
    account.best_value = result_.plans.front().value;
    if (result_.plans.front().order) return;
    // The first of the list is the best as soon as nothing unvisited can beat it, though something might
    // still come before the last.
    if (first_unvisited_) leave_open(*first_unvisited_);
    for (const auto& [target, step] : account.partitions.open_bounds)
        leave_open(value_of(target, step, core::Bytes(0)));
    const core::Seconds worked = work_.spent();
    for (const cluster::Cluster& cluster : request_.unsearched) {
        const bool has_time =
            !is_stopped() &&
            (!request_.time_limit || work_.spent() - worked < *request_.time_limit * share_of_unsearched);
        const std::optional<core::Seconds> step = least_step_of_any_plan(cluster, has_time);
        if (!step || constraint_violated(cluster, *step)) continue;
        ++account.bounded_targets;
        leave_open(value_of(cluster, *step, core::Bytes(0)));
    }
    account.is_proven_optimal = (!open_ || *open_ >= registered) && is_settled_;
    account.lower_bound = open_ ? std::min(registered, *open_) : registered;
}

SearchResult Search::run(core::Diagnostics& diagnostics) {
    // Every legal plan is an entry, or one of the plans that an entry stands for.
    enumerate();
    result_.account.recomputes_some =
        request_.recomputes_some && times_plans() && request_.limits.recompute.empty();
    result_.account.tries_rings =
        request_.tries_rings && times_plans() && request_.limits.context_communication.empty();
    // A plan that is usually good is found, and the best within single steps of it.
    probe_usual_plans(diagnostics);
    // Every family has a bound of the work of its plans, or a rejection.
    bound_families();
    // Nothing is better than the best but other partitions of plans, unless time is up.
    search_waves(diagnostics, share_of_waves);
    // Nor with some layers of a plan run again that is too large for memory with none.
    recompute_some(diagnostics);
    // Nor with keys in a ring that are gathered, of the plans that this could make the best.
    try_rings(diagnostics);
    // No partition of the plans whose partitions are covered is better than the first, and no move of one of
    // its cuts is, unless time is up.
    const PartitionMeans means = partition_means();
    PartitionSearch partitions(graph_, means);
    if (request_.uses_bounds) search_partitions(partitions, means);
    // The plans kept are the best of those simulated, and none that was excluded is better than the last.
    wanted_ = request_.keep;
    const std::optional<RankedPlan> first =
        result_.plans.empty() ? std::nullopt : std::optional(result_.plans.front());
    search_waves(diagnostics, 1);
    // Cuts of one that comes before the first now were not moved, nor was it refined.
    if (first &&
        (first->candidate != result_.plans.front().candidate || !(first->plan == result_.plans.front().plan)))
        is_settled_ = result_.account.is_refined = false;
    // No plan of the list comes before the first with what that was refined to.
    if (request_.uses_bounds && request_.refines_first) refine_listed(partitions);
    result_.account.partitions = partitions.account();
    // Every plan of the space is in exactly one part of the account.
    close_queue();
    if (lacks_plan()) look_for_shortfall();
    // Values of the plans kept are those of their whole steps, best first.
    simulate_whole();
    if (request_.keeps_front)
        for (const RankedPlan& plan : result_.plans) add_to_front(result_.front, plan);
    const core::Seconds searched = elapsed();
    std::optional<double> registered;
    if (!result_.plans.empty()) registered = result_.plans.front().value;
    // No plan is worse than with its registered schedule, and no two plans are the same.
    if (request_.searches_orders) search_orders(diagnostics);
    // Every plan says what binds it and how it compares.
    explain_plans();
    // The account says what is proven of the first plan.
    if (registered) judge_bounds(*registered);
    SearchAccount& account = result_.account;
    account.seconds = elapsed();
    account.work = work_.spent();
    account.cpu_seconds = core::Seconds(double(std::clock() - cpu_begin_) / CLOCKS_PER_SEC);
    if (searched.value > 0)
        account.evaluations_per_second = static_cast<double>(account.evaluated) / searched.value;
    return std::move(result_);
}

std::string_view reason_of(Rejection rejection) {
    switch (rejection) {
        case Rejection::activations: return "activations exceed memory";
        case Rejection::not_run: return "not run by what it is for";
        case Rejection::stages: return "fewer layers than stages";
        case Rejection::deadline: return "later than the deadline";
        case Rejection::host_memory: return "what is offloaded exceeds the memory of the host";
        case Rejection::budget: return "over the budget";
        case Rejection::state: return "parameters, gradients and optimizer state exceed memory";
        case Rejection::simulated_peak: return "simulated peak exceeds memory";
        case Rejection::no_figure: return "the device has no figure for it";
        case Rejection::unneeded: return "offload where activations fit";
    }
    throw core::InternalError("broken promise: every rejection has a reason");
}

SearchResult search_plans(const model::ModelGraph& graph, const std::vector<Target>& targets,
                          const SearchRequest& request, core::Diagnostics& diagnostics) {
    return Search(graph, targets, request).run(diagnostics);
}

std::optional<schedule::Plan> find_fitting_plan(const model::ModelGraph& graph, const Target& target,
                                                int global_batch, schedule::Offload offload,
                                                const PlanLimits& limits) {
    // Several stages a rank need no less memory; limits may know only schedules that have them.
    const int most_virtual_stages = limits.schedules.empty() ? 1 : SpaceRequest().most_virtual_stages;
    const std::vector<schedule::Plan> plans = legal_plans(graph, target.cluster,
                                                          {.global_batch = global_batch,
                                                           .base = target.base,
                                                           .most_virtual_stages = most_virtual_stages,
                                                           .limits = limits,
                                                           .runnable = target.runnable});
    OrderCollection orders;
    StageCollection stages(graph, target.cluster.instance.device);
    Bounds bounds(target.cluster, orders, stages);
    const core::Bytes available = target.cluster.instance.device.memory;
    for (const bool offloads : {false, true}) {
        if (offloads &&
            (offload == schedule::Offload::none || target.base.offload != schedule::Offload::none))
            break;
        std::vector<std::pair<double, schedule::Plan>> order;
        for (schedule::Plan plan : plans) {
            // The least memory of a family: smallest micro-batch, everything recomputed, activations loaded
            // as late as possible; limits may know no such plan.
            if ((plan.micro_batch != 1 && limits.micro_batch.empty()) ||
                (plan.recompute != schedule::Recompute::full && limits.recompute.empty()))
                continue;
            if (offloads) {
                const std::vector<int> horizons =
                    loading_horizons(graph, target.cluster.instance.device, plan);
                if (horizons.empty()) continue;
                plan.offload = offload;
                plan.activation_loading_horizon = horizons.front();
            }
            const std::optional<MemoryBound> memory = bounds.memory(plan);
            if (memory && memory->exceeds_host(target.cluster.instance.host_memory)) continue;
            if (memory && memory->peak <= available && (!offloads || bounds.offloads_anything(plan)))
                order.emplace_back(memory->peak.value, std::move(plan));
        }
        std::stable_sort(order.begin(), order.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        for (std::size_t i = 0; i < std::min(order.size(), most_fitting_tries); ++i) {
            core::Diagnostics diagnostics;
            schedule::Plan plan = order[i].second;
            if (const schedule::Partition* partition = stages.partition(plan)) plan.partition = *partition;
            // How much is offloaded at a time depends on the speed of the copies; steady steps tell of long
            // ones.
            sim::EvaluateOptions options = quick_options(plan, {});
            options.stops_at_overflow = true;
            options.breaks_down = false;
            options.repetition = &stages.repetition();
            options.known_graphs = &stages.known_graphs();
            const std::optional<sim::Evaluation> evaluation =
                sim::evaluate(stages.planned(plan), target.cluster, plan, diagnostics, options);
            if (evaluation && evaluation->fits && is_run(target, plan)) return plan;
        }
    }
    return std::nullopt;
}

}  // namespace planner
