// ZB-V (Qi et al., arXiv 2405.15362) with F = I = W: two chunks a rank placed as a V, so the last stage sits
// beside the first and no rank idles in between. The order is PyTorch's ScheduleZBVZeroBubble; fewer than
// 2p-1 micro-batches run the order of 2p-1 without those that are not there.
#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("zb-v", shape, StagePlacement::v_shape);
    const int ranks = shape.ranks, full = std::max(2 * ranks - 1, shape.micro_batches);
    for (int rank = 0; rank < ranks; ++rank) {
        const int first = rank, second = 2 * ranks - 1 - rank;
        std::vector<Action>& list = schedule.actions[rank];
        int forwards_first = 0, forwards_second = 0, inputs_first = 0, inputs_second = 0;
        auto put = [&](ActionKind kind, int stage, int micro_batch) {
            if (micro_batch < shape.micro_batches) list.push_back({kind, stage, micro_batch});
        };
        auto whole_backward = [&](int stage, int& count) {
            put(ActionKind::backward_input, stage, count);
            put(ActionKind::backward_weight, stage, count++);
        };
        for (int k = 0; k < 2 * (ranks - rank) - 1; ++k) put(ActionKind::forward, first, forwards_first++);
        for (int k = 0; k < rank; ++k) {
            put(ActionKind::forward, second, forwards_second++);
            put(ActionKind::forward, first, forwards_first++);
        }
        for (int k = 0; k < ranks - rank; ++k) {
            put(ActionKind::forward, second, forwards_second++);
            whole_backward(second, inputs_second);
        }
        while (forwards_second < forwards_first || forwards_first < full) {
            if (forwards_first < full) put(ActionKind::forward, first, forwards_first++);
            whole_backward(first, inputs_first);
            put(ActionKind::forward, second, forwards_second++);
            whole_backward(second, inputs_second);
        }
        int weights_first = inputs_first, weights_second = inputs_second;
        for (int k = 0; k < rank; ++k) {
            put(ActionKind::backward_input, first, inputs_first++);
            put(ActionKind::backward_input, second, inputs_second++);
        }
        for (int k = 0; k < ranks - rank; ++k) {
            put(ActionKind::backward_input, first, inputs_first++);
            put(ActionKind::backward_weight, first, weights_first++);
        }
        while (weights_second < inputs_second) put(ActionKind::backward_weight, second, weights_second++);
        while (weights_first < inputs_first) put(ActionKind::backward_weight, first, weights_first++);
    }
    return schedule;
}

}  // namespace

PipelineSchedule zero_bubble_v_schedule() {
    PipelineSchedule schedule;
    schedule.name = "zb-v";
    schedule.aliases = {"zbv", "zbv-zero-bubble"};
    schedule.summary = "zero bubble on a V placement with the memory of 1F1B";
    schedule.source = "arXiv 2405.15362; PyTorch ScheduleZBVZeroBubble";
    schedule.bubble =
        "span without bubble when F = I = W and m >= 2p-1; makespan + (p-1) chunks of start skew";
    schedule.in_flight = "2p chunks (p micro-batches), equal on all ranks";
    schedule.constraint = "two chunks per rank; m >= 2p-1 for zero bubble";
    schedule.splits_backward = true;
    schedule.least_chunks = schedule.greatest_chunks = 2;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
