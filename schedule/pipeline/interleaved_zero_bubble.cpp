// PyTorch's ScheduleInterleavedZeroBubble: interleaved 1F1B with half the warm-up, backward split, and weight
// gradients that start r pairs late on rank r.
#include <fmt/core.h>

#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

int rounds_of(const PipelineShape& shape) { return std::max(1, shape.micro_batches / shape.ranks); }

std::optional<core::Unsupported> unsupported(const PipelineShape& shape) {
    if (shape.micro_batches % rounds_of(shape) == 0) return std::nullopt;
    return core::Unsupported{fmt::format("{} micro-batches do not divide into {} rounds ({} / {} ranks)",
                                         shape.micro_batches, rounds_of(shape), shape.micro_batches,
                                         shape.ranks)};
}

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("interleaved-zero-bubble", shape);
    const int group = shape.micro_batches / rounds_of(shape), total = shape.chunks * shape.micro_batches;
    const std::vector<ChunkStep> order = grouped_order(shape.micro_batches, shape.chunks, group);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        const int warm_up = std::min((shape.chunks - 1) * group + shape.ranks - 1 - rank, total);
        auto forward = [&](int k) {
            const ChunkStep& step = order[k];
            list.push_back(forward_of(step.chunk * shape.ranks + rank, step.micro_batch));
        };
        int weights = 0;
        auto backward = [&](ActionKind kind, int k) {
            const ChunkStep& step = order[k];
            list.push_back({kind, (shape.chunks - 1 - step.chunk) * shape.ranks + rank, step.micro_batch});
        };
        for (int k = 0; k < warm_up; ++k) forward(k);
        for (int k = 0; k < total; ++k) {
            if (k + warm_up < total) forward(k + warm_up);
            backward(ActionKind::backward_input, k);
            if (k >= rank) backward(ActionKind::backward_weight, weights++);
        }
        while (weights < total) backward(ActionKind::backward_weight, weights++);
    }
    return schedule;
}

}  // namespace

PipelineSchedule interleaved_zero_bubble_schedule() {
    PipelineSchedule schedule;
    schedule.name = "interleaved-zero-bubble";
    schedule.aliases = {"interleaved-zb1p"};
    schedule.summary = "interleaving with split backward; weight gradients fill the drain";
    schedule.source = "PyTorch ScheduleInterleavedZeroBubble; arXiv 2401.10241";
    schedule.bubble = "(p-1)/(3vm+p-1) with F = I = W when p divides m";
    schedule.in_flight = "at most vp chunks";
    schedule.constraint = "max(1, floor(m/p)) divides m";
    schedule.splits_backward = true;
    schedule.unsupported = unsupported;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
