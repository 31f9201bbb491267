// Breadth-first pipeline parallelism (Lamy-Poirier, arXiv 2211.05953) as PyTorch's ScheduleLoopedBFS orders
// it: every chunk does all micro-batches before the next chunk; backwards mirror it, micro-batches too.
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("looped-bfs", shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        for (int chunk = 0; chunk < shape.chunks; ++chunk)
            for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
                list.push_back(forward_of(chunk * shape.ranks + rank, micro_batch));
        for (int chunk = shape.chunks - 1; chunk >= 0; --chunk)
            for (int micro_batch = shape.micro_batches - 1; micro_batch >= 0; --micro_batch)
                list.push_back(backward_of(chunk * shape.ranks + rank, micro_batch));
    }
    return schedule;
}

}  // namespace

PipelineSchedule looped_bfs_schedule() {
    PipelineSchedule schedule;
    schedule.name = "looped-bfs";
    schedule.aliases = {"breadth-first"};
    schedule.summary = "all micro-batches of one chunk before the next chunk (breadth first)";
    schedule.source = "arXiv 2211.05953; PyTorch ScheduleLoopedBFS";
    schedule.bubble = "(p-1)/(vm+p-1) for m >= p";
    schedule.in_flight = "vm chunks";
    schedule.constraint = "none";
    schedule.goes_forward_first = true;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
