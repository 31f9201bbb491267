// Zero bubble (Qi et al., arXiv 2401.10241): the backward is split, only I is passed on, and W fills what
// would be idle. Orders come from the paper's round-by-round scheduler, which is exact in its authors' lists;
// with unequal stages, or where it finds none within the limit, a second builder competes with it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"
#include "schedule/pipeline/zero_bubble_orders.h"
#include "schedule/rounding.h"

namespace schedule {

namespace {

double greatest_forward_memory(const PipelineShape& shape) {
    double greatest = 0;
    for (int stage = 0; stage < shape.stages(); ++stage)
        greatest = std::max(greatest, shape.cost(stage).memory_forward);
    return greatest;
}

bool has_equal_stages(const PipelineShape& shape) {
    return std::all_of(shape.stage_costs.begin(), shape.stage_costs.end(),
                       [&](const RelativeStageCost& cost) { return cost == shape.stage_costs.front(); });
}

ActionLists best_order(const PipelineShape& shape, double memory_limit) {
    std::optional<ActionLists> best = zero_bubble_by_rounds(shape, memory_limit);
    if (best && has_equal_stages(shape)) return *best;
    const std::optional<ActionLists> other = zero_bubble_by_clock(shape, memory_limit);
    if (other &&
        (!best ||
         play_order(shape, *other, memory_limit).is_better_than(play_order(shape, *best, memory_limit))))
        best = other;
    if (best) return *best;
    // Micro-batches one after the other have the least memory of all orders.
    ActionLists serial;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = serial.emplace_back();
        for (int k = 0; k < shape.micro_batches; ++k)
            list.insert(list.end(),
                        {forward_of(rank, k), backward_input_of(rank, k), backward_weight_of(rank, k)});
    }
    return serial;
}

std::optional<core::Unsupported> unsupported_within(const PipelineShape& shape, double memory_limit) {
    for (int stage = 0; stage < shape.ranks; ++stage) {
        const RelativeStageCost cost = shape.cost(stage);
        const double needed =
            std::max({cost.memory_forward, cost.memory_forward + std::max(0.0, cost.memory_backward_input)});
        if (needed > memory_limit * (1 + rounding))
            return core::Unsupported{
                fmt::format("one micro-batch on stage {} takes {:.6g}, more than the memory limit of {:.6g}",
                            stage, needed, memory_limit)};
        if (cost.memory_forward + cost.memory_backward_input + cost.memory_backward_weight >
            rounding * std::abs(cost.memory_forward))
            return core::Unsupported{fmt::format(
                "the actions of one micro-batch on stage {} leave memory behind: {:.6g} {:+.6g} {:+.6g} is "
                "above 0",
                stage, cost.memory_forward, cost.memory_backward_input, cost.memory_backward_weight)};
    }
    return std::nullopt;
}

Schedule build(const char* name, const PipelineShape& shape, const PipelineShape& times,
               double memory_limit) {
    Schedule schedule = empty_schedule(name, shape);
    schedule.actions = best_order(times, memory_limit);
    return schedule;
}

// ZB-H1 and ZB-H2 are built for equal times, also where the real times differ.
PipelineShape unit_times(const PipelineShape& shape) {
    PipelineShape unit;
    unit.ranks = shape.ranks;
    unit.micro_batches = shape.micro_batches;
    return unit;
}

double limit_in_micro_batches(const PipelineShape& shape, double micro_batches) {
    return shape.memory_limit.value_or(micro_batches * greatest_forward_memory(shape));
}
double limit_1p(const PipelineShape& shape) { return limit_in_micro_batches(shape, shape.ranks); }
double limit_2p(const PipelineShape& shape) { return limit_in_micro_batches(shape, 2.0 * shape.ranks); }

PipelineSchedule zero_bubble(const char* name, const char* summary) {
    PipelineSchedule schedule;
    schedule.name = name;
    schedule.summary = summary;
    schedule.source = "arXiv 2401.10241; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.splits_backward = true;
    schedule.greatest_chunks = 1;
    return schedule;
}

}  // namespace

PipelineSchedule zb_h1_schedule() {
    PipelineSchedule schedule =
        zero_bubble("zb-h1", "zero bubble with the memory of 1F1B, made for equal times");
    schedule.bubble = "span m(F+I+W) + (p-1)(F+I-W) for m >= p";
    schedule.in_flight = "at most p on every rank, counted until W";
    schedule.constraint = "one chunk per rank";
    schedule.generate = [](const PipelineShape& shape) {
        return build("zb-h1", shape, unit_times(shape), shape.ranks);
    };
    return schedule;
}

PipelineSchedule zb_h2_schedule() {
    PipelineSchedule schedule =
        zero_bubble("zb-h2", "zero bubble with up to 2p-1 micro-batches in flight, made for equal times");
    schedule.bubble = "span m(F+I+W) + (p-1)(F+I-2W) for m >= 2p-1; makespan + (p-1)F of start skew";
    schedule.in_flight = "at most 2p-1 on every rank, counted until W";
    schedule.constraint = "one chunk per rank; m >= 2p-1 for zero bubble";
    schedule.generate = [](const PipelineShape& shape) {
        return build("zb-h2", shape, unit_times(shape), 2 * shape.ranks - 1);
    };
    return schedule;
}

PipelineSchedule zb_1p_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-1p",
                                            "zero bubble for given times (of plans: equal stages) within a "
                                            "memory limit (default: p micro-batches)");
    schedule.aliases = {"zb"};
    schedule.orders_by_times = true;
    schedule.bubble = "by times and limit";
    schedule.in_flight = "within the memory limit";
    schedule.constraint = "one chunk per rank; the limit holds one micro-batch";
    schedule.unsupported = [](const PipelineShape& shape) {
        return unsupported_within(shape, limit_1p(shape));
    };
    schedule.generate = [](const PipelineShape& shape) {
        return build("zb-1p", shape, shape, limit_1p(shape));
    };
    return schedule;
}

PipelineSchedule zb_2p_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-2p",
                                            "zero bubble for given times (of plans: equal stages) within a "
                                            "memory limit (default: 2p micro-batches)");
    schedule.orders_by_times = true;
    schedule.bubble = "by times and limit";
    schedule.in_flight = "within the memory limit";
    schedule.constraint = "one chunk per rank; the limit holds one micro-batch";
    schedule.unsupported = [](const PipelineShape& shape) {
        return unsupported_within(shape, limit_2p(shape));
    };
    schedule.generate = [](const PipelineShape& shape) {
        return build("zb-2p", shape, shape, limit_2p(shape));
    };
    return schedule;
}

}  // namespace schedule
