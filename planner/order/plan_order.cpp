#include "planner/order/plan_order.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/diagnostics.h"
#include "planner/search_space.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/planned_graph.h"
#include "schedule/schedule_text.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/pricing.h"
#include "sim/evaluate.h"

namespace planner {

namespace {

using schedule::ComputePhase;
using schedule::InstructionKind;

// Share of the memory limit that is asked for when the simulation of an order found exceeds memory by the
// transients of single operators, which the search's sums of activations leave out.
constexpr double less_memory = 0.85;
// Of the activations of one micro-batch: a plan that does not fit is still ordered, with one micro-batch in
// flight and half of the next one.
constexpr double least_in_flight = 1.5;
// Rounds over all virtual stages that registered schedules are simulated with; longer steps are extrapolated.
constexpr int simulated_rounds = 5;

// Two micro-batches one after the other, backward split: every kind of instruction of a middle micro-batch is
// there to be priced.
schedule::Schedule probe_order(const schedule::Plan& plan) {
    schedule::Schedule order;
    order.ranks = plan.layout.pipeline;
    order.stages = plan.stages();
    order.micro_batches = 2;
    order.actions.resize(order.ranks);
    for (int k = 0; k < order.micro_batches; ++k) {
        for (int s = 0; s < order.stages; ++s)
            order.actions[s % order.ranks].push_back({schedule::ActionKind::forward, s, k});
        for (int s = order.stages - 1; s >= 0; --s)
            for (const schedule::ActionKind kind :
                 {schedule::ActionKind::backward_input, schedule::ActionKind::backward_weight})
                order.actions[s % order.ranks].push_back({kind, s, k});
    }
    return order;
}

// Collectives inside a stage run between its kernels while the rank waits: their time belongs to the pass
// that carries their payload.
void add_duration(const schedule::Instruction& instruction, core::Seconds duration, OrderProblem& problem) {
    if (instruction.micro_batch != 1) return;
    if (instruction.kind == InstructionKind::send) {
        problem.transfer = std::max(problem.transfer, duration);
        return;
    }
    if (instruction.stage < 0) return;
    sim::StageCost& cost = problem.stages[instruction.stage];
    // Of pieces all but the last are exchanged beside products.
    const bool runs_beside = instruction.pieces > 1 && !is_last_piece(instruction);
    if (instruction.kind == InstructionKind::collective && instruction.group == schedule::GroupKind::tensor) {
        if (runs_beside) return;
        (instruction.phase == ComputePhase::forward ? cost.forward : cost.backward_input) += duration;
    } else if (instruction.kind == InstructionKind::compute) {
        (instruction.phase == ComputePhase::forward           ? cost.forward
         : instruction.phase == ComputePhase::backward_weight ? cost.backward_weight
                                                              : cost.backward_input) += duration;
    }
}

struct Timed {
    schedule::Plan plan;
    core::Seconds step;
    bool fits = false;
    int of = 1;  // schedules that were timed
};

// Which registered schedule, cutting sequences or not, is fastest for this plan, one that
// fits before one that does not. Steps with many micro-batches are extrapolated where that is exact, so that
// twenty schedules cost little more than one.
std::optional<Timed> best_registered(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                     const schedule::Plan& plan) {
    std::optional<Timed> best;
    int timed = 0;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
        if (candidate.is_forward_only || candidate.is_asynchronous || candidate.is_bidirectional) continue;
        for (schedule::Plan& named : plans_with_schedule(graph, plan, candidate)) {
            core::Diagnostics refusals;
            if (!schedule::check_schedule(named, refusals)) continue;
            sim::EvaluateOptions options;
            options.keeps_timeline = false;
            options.most_micro_batches = simulated_rounds * plan.stages();
            const std::optional<sim::Evaluation> evaluation =
                sim::evaluate(graph, cluster, named, refusals, options);
            if (!evaluation) continue;
            ++timed;
            const bool is_better = !best || (evaluation->fits && !best->fits) ||
                                   (evaluation->fits == best->fits && evaluation->step_time < best->step);
            if (is_better) best = Timed{std::move(named), evaluation->step_time, evaluation->fits};
        }
    }
    if (best) best->of = timed;
    return best;
}

schedule::Plan plain(const schedule::Plan& plan) {
    schedule::Plan changed = plan;
    changed.keep_sequences_whole();
    changed.schedule = plan.virtual_stages == 1 ? "1f1b" : "looped-bfs";
    return changed;
}

}  // namespace

std::optional<OrderProblem> order_problem(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                          const schedule::Plan& given, core::Diagnostics& diagnostics) {
    schedule::Plan plan = plain(given);
    if (plan.partition.first_units.empty()) {
        std::optional<schedule::Partition> partition = sim::complete_partition(plan, graph, cluster);
        if (!partition) {
            diagnostics.error({}, "plan.pipeline_parallel",
                              fmt::format("{} has fewer units than {} stages", graph.name, plan.stages()),
                              "use fewer stages");
            return std::nullopt;
        }
        plan.partition = std::move(*partition);
    }
    const std::optional<sim::Evaluation> fixed =
        sim::evaluate(graph, cluster, plan, diagnostics, {.keeps_timeline = false, .memory_only = true});
    if (!fixed) return std::nullopt;
    sim::keep_gathered(sim::framework_traits(plan.framework), plan);
    plan.micro_batches = 2;
    const schedule::PlannedGraph planned(plan, graph);
    std::optional<sim::CostModels> costs = sim::make_cost_models(*planned, cluster, plan, diagnostics);
    if (!costs) return std::nullopt;
    OrderProblem problem;
    problem.ranks = plan.layout.pipeline;
    problem.chunks = plan.virtual_stages;
    problem.micro_batches = given.micro_batches;
    problem.stages.assign(plan.stages(),
                          sim::StageCost{core::Seconds(0), core::Seconds(0), core::Seconds(0)});
    const schedule::Program program = schedule::lower(plan, *planned, probe_order(plan));
    const sim::PricedProgram priced = sim::price(program, *costs);
    for (std::size_t c = 0; c < program.classes.size(); ++c)
        for (std::size_t i = 0; i < program.classes[c].instructions.size(); ++i)
            add_duration(program.classes[c].instructions[i], priced.durations.of[c][i], problem);
    for (std::size_t s = 0; s < program.stages.size(); ++s) {
        const schedule::ActivationFootprint footprint =
            schedule::activation_footprint(*planned, program.stages[s].operators, plan.of_stage(int(s)));
        sim::StageCost& cost = problem.stages[s];
        cost.memory_forward = footprint.saved;
        cost.memory_backward_input = footprint.kept_for_weight + footprint.saved_for_weight - footprint.saved;
        cost.memory_backward_weight = core::Bytes(0) - footprint.kept_for_weight - footprint.saved_for_weight;
    }
    // What a device has beside everything that is no activation.
    std::optional<core::Bytes> room;
    for (const sim::ClassMemory& memory : fixed->memory) {
        const core::Bytes left = fixed->available_memory - (memory.peak - memory.activations);
        if (!room || left < *room) room = left;
    }
    core::Bytes least(0);
    for (int rank = 0; rank < problem.ranks; ++rank) {
        core::Bytes one(0);
        for (int chunk = 0; chunk < problem.chunks; ++chunk)
            one += problem.stages[problem.stage_of(rank, chunk)].memory_forward;
        least = std::max(least, one);
    }
    problem.memory_limit = std::max(room.value_or(core::Bytes(0)), least * least_in_flight);
    return problem;
}

std::optional<OrderedPlan> with_searched_order(const model::ModelGraph& graph,
                                               const cluster::Cluster& cluster, const schedule::Plan& plan,
                                               core::Diagnostics& diagnostics, const SearchBudget& budget) {
    OrderedPlan best{plain(plan), "one pipeline rank has nothing to order"};
    if (plan.layout.pipeline == 1) return best;
    std::optional<OrderProblem> problem = order_problem(graph, cluster, plan, diagnostics);
    if (!problem) return std::nullopt;
    const std::optional<Timed> base = best_registered(graph, cluster, plan);
    if (!base) {
        // The plain schedule has no constraint: what cannot be priced with it cannot be priced.
        if (sim::evaluate(graph, cluster, best.plan, diagnostics))
            diagnostics.error({}, "plan.schedule",
                              "schedule = \"auto\": no registered schedule takes this shape", "");
        return std::nullopt;
    }
    best.plan = base->plan;
    best.explanation = fmt::format(
        "schedule = \"auto\": no order found beats {} ({:.6g} s), the best of {} registered schedules",
        best.plan.schedule, base->step.value, base->of);
    // The simulation knows of transients that the search's sum of activations leaves out: where they decide,
    // less memory is asked for.
    constexpr int most_tries = 3;
    for (int attempt = 0; attempt < most_tries; ++attempt) {
        const std::optional<FoundSchedule> found = search_placements(*problem, budget);
        if (!found) break;
        schedule::Plan ordered = plain(plan);  // searched orders are of whole sequences
        ordered.schedule = print_schedule(found->schedule);
        std::optional<sim::Evaluation> evaluation = sim::evaluate(graph, cluster, ordered, diagnostics);
        if (!evaluation) return std::nullopt;
        if (!evaluation->fits && base->fits) {
            problem->memory_limit = *problem->memory_limit * less_memory;
            continue;
        }
        if (evaluation->fits >= base->fits && evaluation->step_time < base->step) {
            best.plan = std::move(ordered);
            best.evaluation = std::move(evaluation);
            const double gap = 100 * (found->objective - found->lower_bound).value / found->objective.value;
            best.explanation = fmt::format(
                "schedule = \"auto\": searched order, {:.6g} s instead of {:.6g} s with {}, the best of {} "
                "registered schedules; compute order "
                "within {:.2f} % of its lower bound{}",
                best.evaluation->step_time.value, base->step.value, base->plan.schedule, base->of, gap,
                found->is_proven_optimal ? ", proven optimal" : "");
        }
        break;
    }
    return best;
}

}  // namespace planner
