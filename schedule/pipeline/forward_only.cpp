// Evaluation: forwards only, in the order of interleaved 1F1B (Megatron-LM's forward_only; group size as
// there).
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("forward-only", shape);
    schedule.is_forward_only = true;
    for (int rank = 0; rank < shape.ranks; ++rank)
        for (const ChunkStep& step : grouped_order(shape.micro_batches, shape.chunks, shape.group_size()))
            schedule.actions[rank].push_back(forward_of(step.chunk * shape.ranks + rank, step.micro_batch));
    return schedule;
}

}  // namespace

PipelineSchedule forward_only_schedule() {
    PipelineSchedule schedule;
    schedule.name = "forward-only";
    schedule.parameters = GroupParameters{};
    schedule.aliases = {"inference", "evaluation"};
    schedule.summary = "forwards of every micro-batch, no backward (evaluation)";
    schedule.source = "Megatron-LM schedules.py forward_only; DeepSpeed InferenceSchedule";
    schedule.bubble = "(p-1)/(vm+p-1) when p divides m";
    schedule.in_flight =
        "1 when outputs are released as they are sent (peak_in_flight counts forwards without backward: vm)";
    schedule.constraint = "none";
    schedule.is_forward_only = true;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
