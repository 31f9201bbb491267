// Chimera (Li and Hoefler, arXiv 2107.06925) with one pair of pipelines: half of the micro-batches run down
// the ranks, half up a second copy of the model, in units of p micro-batches. In a unit the k-th of a
// direction runs forward on stage s in slot s + 2k and backward in slot 2p - 1 - s + 2k; the two directions
// have opposite parity on every rank and never collide. Units follow each other every 2p slots, the next
// one's forwards in the slots that the drain leaves free.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

std::optional<core::Unsupported> unsupported(const PipelineShape& shape) {
    if (shape.ranks % 2 != 0) return core::Unsupported{fmt::format("{} ranks are odd", shape.ranks)};
    if (shape.micro_batches % shape.ranks != 0)
        return core::Unsupported{
            fmt::format("{} micro-batches are no multiple of {} ranks", shape.micro_batches, shape.ranks)};
    return std::nullopt;
}

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("chimera", shape, StagePlacement::bidirectional);
    const int ranks = shape.ranks, per_unit = ranks / 2;
    schedule.directions = 2;
    schedule.micro_batches = shape.micro_batches / 2;
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::pair<int, Action>> slots;
        for (std::int16_t direction = 0; direction < 2; ++direction) {
            const int stage = direction == 0 ? rank : ranks - 1 - rank;
            for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
                const int start = micro_batch / per_unit * 2 * ranks + 2 * (micro_batch % per_unit);
                slots.push_back({start + stage, {ActionKind::forward, stage, micro_batch, 0, direction}});
                slots.push_back({start + 2 * ranks - 1 - stage,
                                 {ActionKind::backward, stage, micro_batch, 0, direction}});
            }
        }
        std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
        for (const auto& [slot, action] : slots) schedule.actions[rank].push_back(action);
    }
    return schedule;
}

}  // namespace

PipelineSchedule chimera_schedule() {
    PipelineSchedule schedule;
    schedule.name = "chimera";
    schedule.summary = "two directions over two copies of the model, merged slot by slot";
    schedule.source = "arXiv 2107.06925, one pair of pipelines, direct concatenation";
    schedule.bubble = "(p-2)/(2m+p-2) with equal forward and backward slots";
    schedule.in_flight = "p/2+1 .. p";
    schedule.constraint = "p even; p divides m (m of both directions); one chunk of each copy per rank";
    schedule.greatest_chunks = 1;
    schedule.is_bidirectional = true;
    schedule.unsupported = unsupported;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
