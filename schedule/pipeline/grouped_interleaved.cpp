// Grouped interleaving with split backward (PipeOffload, Wan et al., arXiv 2503.01328): groups of g <= p
// micro-batches pass through the chunks, so a rank holds about v g chunks where Megatron-LM's interleaving
// with g >= p holds at least v p. Forward, gradient and weight of a micro-batch take three slots; the block
// of a group repeats every 3 g v slots, its gradients beginning as soon as the first micro-batch has come
// back from the last rank.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

std::optional<core::Unsupported> unsupported(const PipelineShape& shape) {
    const int group = shape.group_size(), least = (shape.ranks + 1) / 2;
    if (group >= least && group <= shape.ranks) return std::nullopt;
    return core::Unsupported{fmt::format("group size {} is outside {} .. {} (half of {} ranks up to all)",
                                         group, least, shape.ranks, shape.ranks)};
}

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("grouped-interleaved", shape);
    const int group = shape.group_size(), period = 3 * group * shape.chunks;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<std::pair<int, Action>> slots;
        // A hop takes one slot forward and two back (gradient, then weight).
        const int to_last = shape.ranks - 1 - rank,
                  first_gradient = 3 * group * (shape.chunks - 1) + rank + 3 * to_last + 1;
        for (int k = 0; k < shape.micro_batches; ++k)
            for (int chunk = 0; chunk < shape.chunks; ++chunk) {
                const int start = k / group * period + 3 * (k % group) + 3 * group * chunk;
                slots.push_back({start + rank, forward_of(chunk * shape.ranks + rank, k)});
                const int stage = (shape.chunks - 1 - chunk) * shape.ranks + rank;
                slots.push_back({start + first_gradient, backward_input_of(stage, k)});
                slots.push_back({start + first_gradient + 1, backward_weight_of(stage, k)});
            }
        std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& [slot, action] : slots) schedule.actions[rank].push_back(action);
    }
    return schedule;
}

}  // namespace

PipelineSchedule grouped_interleaved_schedule() {
    PipelineSchedule schedule;
    schedule.name = "grouped-interleaved";
    schedule.parameters = GroupParameters{};
    schedule.aliases = {"pipeoffload"};
    schedule.summary =
        "interleaving in groups of g <= p micro-batches with split backward: less memory for more bubble";
    schedule.source = "arXiv 2503.01328 (PipeOffload); sail-sg/zero-bubble-pipeline-parallelism";
    schedule.bubble = "2(p-1) + (v-1)(p-g) chunk units with F = I = W when g divides m";
    schedule.in_flight = "min(vm, (v-1)g + p - r) chunks";
    schedule.constraint = "g (group size, default p) between ceil(p/2) and p";
    schedule.splits_backward = true;
    schedule.unsupported = unsupported;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
