// 1F1B with flush: PipeDream-flush (Narayanan et al., arXiv 2006.09503), DAPPLE (arXiv 2007.01045),
// Megatron-LM's non-interleaved schedule.
#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("1f1b", shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        const int warm_up = std::min(shape.ranks - 1 - rank, shape.micro_batches);
        for (int k = 0; k < warm_up; ++k) list.push_back(forward_of(rank, k));
        for (int k = 0; k + warm_up < shape.micro_batches; ++k) {
            list.push_back(forward_of(rank, k + warm_up));
            list.push_back(backward_of(rank, k));
        }
        for (int k = shape.micro_batches - warm_up; k < shape.micro_batches; ++k)
            list.push_back(backward_of(rank, k));
    }
    return schedule;
}

}  // namespace

PipelineSchedule one_forward_one_backward_schedule() {
    PipelineSchedule schedule;
    schedule.name = "1f1b";
    schedule.aliases = {"pipedream-flush", "dapple"};
    schedule.summary = "one forward, one backward after a warm-up of p-1-r forwards";
    schedule.source = "arXiv 2006.09503 (PipeDream-flush), arXiv 2007.01045 (DAPPLE), Megatron-LM";
    schedule.bubble = "(p-1)/(m+p-1)";
    schedule.in_flight = "min(m, p-r)";
    schedule.constraint = "one chunk per rank";
    schedule.greatest_chunks = 1;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
