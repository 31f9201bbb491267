// GPipe (Huang et al., arXiv 1811.06965) and SageMaker SMP's `pipeline: simple`: all forwards, then all
// backwards.
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("simple", shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
            list.push_back(forward_of(rank, micro_batch));
        for (int micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch)
            list.push_back(backward_of(rank, micro_batch));
    }
    return schedule;
}

}  // namespace

PipelineSchedule simple_schedule() {
    PipelineSchedule schedule;
    schedule.name = "simple";
    schedule.aliases = {"gpipe", "fill-drain"};
    schedule.summary = "all forwards, then all backwards (GPipe; SageMaker SMP simple)";
    schedule.source = "arXiv 1811.06965; SageMaker SMP v1 `pipeline: simple`";
    schedule.bubble = "(p-1)/(m+p-1)";
    schedule.in_flight = "m";
    schedule.constraint = "one chunk per rank";
    schedule.greatest_chunks = 1;
    schedule.goes_forward_first = true;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
