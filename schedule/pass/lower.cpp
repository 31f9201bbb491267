#include "schedule/pass/lower.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/segment.h"
#include "schedule/pass/rank_lowering.h"
#include "schedule/pass/unroll.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/planned_graph.h"

namespace schedule {

namespace {

// The registered schedule and its shape, when a plan can use it.
const PipelineSchedule* usable_schedule(const Plan& plan, core::Diagnostics& diagnostics, int micro_batches,
                                        const core::SourceLocation& location, PipelineShape& shape) {
    const PipelineSchedule* found = find_pipeline_schedule(plan.schedule);
    if (!found && is_searched_order(plan.schedule)) {
        diagnostics.error(
            location, "plan.schedule", "schedule = \"auto\" asks for a search, which has not been made",
            "smsim, smplan and smexec make it when they load a plan; elsewhere name a registered schedule");
        return nullptr;
    }
    if (!found) {
        check_schedule_name(plan.schedule, diagnostics, location);
        return nullptr;
    }
    if (found->is_asynchronous && plan.shards(Sharding::optimizer)) {
        diagnostics.error(
            location, "plan.schedule",
            fmt::format("schedule = {} keeps several versions of the parameters, sharding = \"{}\" one",
                        core::in_quotes(found->name), name_of(plan.sharding)),
            "set sharding = \"none\", or choose a synchronous schedule");
        return nullptr;
    }
    if (found->is_asynchronous && plan.optimizer.gradient_clipping > 0) {
        diagnostics.error(location, "plan.schedule",
                          fmt::format("schedule = {} updates stages at different times, gradient_clipping = "
                                      "{} needs the gradients of all at once",
                                      core::in_quotes(found->name), plan.optimizer.gradient_clipping),
                          "set gradient_clipping = 0, or choose a synchronous schedule");
        return nullptr;
    }
    shape = shape_of(plan);
    if (micro_batches > 0) shape.micro_batches = micro_batches;
    if (const auto unsupported = schedule::unsupported(*found, shape)) {
        diagnostics.error(
            location, "plan.schedule",
            fmt::format("schedule = {}: {}", core::in_quotes(plan.schedule), unsupported->reason),
            found->constraint.empty() ? std::string() : "it needs: " + found->constraint);
        return nullptr;
    }
    return found;
}

}  // namespace

PipelineShape shape_of(const Plan& plan) {
    PipelineShape shape;
    shape.ranks = plan.layout.pipeline;
    shape.chunks = plan.virtual_stages;
    shape.micro_batches = plan.micro_batches;
    shape.parameters = plan.schedule_parameters;
    return shape;
}

std::optional<Schedule> make_schedule(const Plan& plan, core::Diagnostics& diagnostics, int micro_batches) {
    if (is_explicit_order(plan.schedule)) return explicit_order(plan, diagnostics, micro_batches);
    PipelineShape shape;
    const PipelineSchedule* found = usable_schedule(plan, diagnostics, micro_batches, {}, shape);
    if (!found) return std::nullopt;
    return found->generate(shape);
}

bool check_schedule_name(const std::string& name, core::Diagnostics& diagnostics,
                         const core::SourceLocation& location) {
    if (is_searched_order(name) || is_explicit_order(name) || find_pipeline_schedule(name)) return true;
    std::vector<std::string> names;
    for (const PipelineSchedule& schedule : pipeline_schedules()) names.push_back(schedule.name);
    const std::string near = core::did_you_mean(name, names);
    diagnostics.error(location, "plan.schedule",
                      fmt::format("schedule = {} is not registered", core::in_quotes(name)),
                      near.empty() ? "use " + core::list_in_words(names)
                                   : fmt::format("did you mean {}?", core::in_quotes(near)));
    return false;
}

bool check_schedule(const Plan& plan, core::Diagnostics& diagnostics, int micro_batches,
                    const core::SourceLocation& location) {
    if (is_searched_order(plan.schedule)) return true;
    if (is_explicit_order(plan.schedule))
        return explicit_order(plan, diagnostics, micro_batches, location).has_value();
    PipelineShape shape;
    return usable_schedule(plan, diagnostics, micro_batches, location, shape) != nullptr;
}

namespace {

// Backward passes before the first update of an asynchronous schedule.
int micro_batches_per_update(const Schedule& order) {
    if (order.weight_versions == 0) return 0;
    int backwards = 0;
    for (const Action& action : order.actions.front()) {
        if (action.kind == ActionKind::optimizer_step) break;
        if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) ++backwards;
    }
    return backwards;
}

// `order` is unrolled; `given` says how many directions and parts of sequences it had.
Program skeleton(const Plan& plan, const Schedule& order, const Schedule& given) {
    core::require(!given.cuts_sequences() || (given.directions == 1 && given.weight_versions == 0),
                  "sequences are cut in one direction, with one update a step");
    Program program;
    program.plan = plan;
    program.micro_batches = order.micro_batches;
    program.directions = given.directions;
    program.segments = given.segments;
    program.micro_batches_per_update = micro_batches_per_update(order);
    program.stages.resize(order.stages);
    for (int s = 0; s < order.stages; ++s) program.stages[s].rank = rank_of_stage(order, s);
    program.class_of_rank.resize(plan.layout.ranks());
    for (int rank = 0; rank < plan.layout.ranks(); ++rank)
        program.class_of_rank[rank] = coordinates_of(plan.layout, rank).pipeline;
    return program;
}

}  // namespace

Program lower(const Plan& plan, const model::ModelGraph& graph, const Schedule& given,
              const LowerOptions& options) {
    core::require(given.ranks == plan.layout.pipeline && given.stages == plan.stages(),
                  "the schedule has the plan's pipeline shape");
    core::require(core::count_of(plan.partition.first_units) == given.stages,
                  "the plan's partition is complete");
    core::require(is_laid_out(graph, plan), "the graph is the plan's (planned_graph.h)");
    const Schedule order = unroll_directions(unroll_sequences(given));
    Program program = skeleton(plan, order, given);
    core::require(options.micro_batches == 0 || options.micro_batches == program.whole_micro_batches(),
                  "the schedule has the micro-batches that are lowered");
    if (options.hashes_model) program.model_hash = model::hash_of(graph);

    // Stages and boundaries: consecutive, covering all units; one tensor list per boundary that something
    // crosses.
    const std::vector<std::int32_t>& first = plan.partition.first_units;
    const auto units = core::count_of(graph.units);
    core::require(first.front() == 0, "the first stage begins with the first unit");
    for (std::size_t s = 0; s < program.stages.size(); ++s) {
        const std::size_t of_copy = s % first.size();
        const std::int32_t begin = first[of_copy],
                           end = of_copy + 1 < first.size() ? first[of_copy + 1] : units;
        core::require(begin < end && end <= units, "every stage has a unit");
        program.stages[s].operators = {graph.units[begin].operators.begin,
                                       graph.units[end - 1].operators.end};
        if (of_copy == 0) continue;
        std::vector<model::TensorId> tensors =
            model::tensors_crossing(graph, program.stages[s].operators.begin);
        if (tensors.empty()) continue;
        program.stages[s - 1].sends = program.stages[s].receives = core::count_of(program.tensor_lists);
        program.tensor_lists.push_back(std::move(tensors));
    }

    // Parts of a sequence differ in what attention keeps and leaves, not in their tensors.
    std::optional<model::SegmentGraphs> made;
    if (!options.graphs) made.emplace(segment_graphs(program, graph));
    const model::SegmentGraphs& graphs = options.graphs ? *options.graphs : *made;
    std::vector<std::vector<ActivationFootprint>> footprints(program.stages.size());
    for (const model::ModelGraph& segment : graphs) {
        std::vector<ActivationFootprint> of_segment = activation_footprints(
            segment, operators_of_stages(program), plan, nullptr, order.is_forward_only, options.repetition);
        for (std::size_t s = 0; s < program.stages.size(); ++s)
            footprints[s].push_back(std::move(of_segment[s]));
    }
    for (int rank = 0; rank < order.ranks; ++rank) {
        RankLowering lowering(program, &graphs[0], order, options, footprints, rank);
        // Ranks differ little in the length of their lists.
        if (rank > 0) lowering.make_room_like(program.classes.back());
        program.classes.push_back(lowering.lower());
    }
    return program;
}

Program lower_compute_only(const Schedule& given) {
    const Schedule order = unroll_directions(unroll_sequences(given));
    Plan plan;
    plan.layout.pipeline = order.ranks;
    plan.virtual_stages = given.stages / given.ranks;
    plan.schedule = order.name;
    plan.micro_batches = given.micro_batches * given.directions;
    Program program = skeleton(plan, order, given);
    program.micro_batches_per_update = 0;  // without operators there is nothing to update
    const std::vector<std::vector<ActivationFootprint>> footprints(
        program.stages.size(), std::vector<ActivationFootprint>(program.passes_per_micro_batch()));
    for (int rank = 0; rank < order.ranks; ++rank)
        program.classes.push_back(RankLowering(program, nullptr, order, {}, footprints, rank).lower());
    return program;
}

}  // namespace schedule
