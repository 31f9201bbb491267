// Seq1F1B (Sun et al., arXiv 2406.03488): 1F1B over segments of each micro-batch's sequence. Causal attention
// lets a segment's forward start when the one before it is done; its backward needs those of all later
// segments.
#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("seq1f1b", shape);
    const int segments = schedule.segments =
        parameters_or_default<SegmentParameters>(shape.parameters).count();
    const int total = segments * shape.micro_batches;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        auto put = [&](ActionKind kind, int k) {
            const int segment = kind == ActionKind::forward ? k % segments : segments - 1 - k % segments;
            list.push_back({kind, rank, k / segments, static_cast<std::int16_t>(segment)});
        };
        const int warm_up = std::min(shape.ranks - 2 - rank + segments, total);
        for (int k = 0; k < warm_up; ++k) put(ActionKind::forward, k);
        for (int k = 0; k < total; ++k) {
            if (k + warm_up < total) put(ActionKind::forward, k + warm_up);
            put(ActionKind::backward, k);
        }
    }
    return schedule;
}

}  // namespace

PipelineSchedule seq1f1b_schedule() {
    PipelineSchedule schedule;
    schedule.name = "seq1f1b";
    schedule.parameters = SegmentParameters{};
    schedule.summary = "1F1B over s segments of each sequence";
    schedule.source = "arXiv 2406.03488";
    schedule.bubble = "(p-1)/(sm+p-1)";
    schedule.in_flight = "min(sm, p-1-r+s) segments";
    schedule.constraint = "one chunk per rank; causal attention";
    schedule.greatest_chunks = 1;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
