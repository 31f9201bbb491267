#include "schedule/pipeline/order.h"

#include <algorithm>

namespace schedule {

Schedule empty_schedule(const std::string& name, const PipelineShape& shape, StagePlacement placement) {
    Schedule schedule;
    schedule.name = name;
    schedule.ranks = shape.ranks;
    schedule.stages = shape.stages();
    schedule.micro_batches = shape.micro_batches;
    schedule.placement = placement;
    schedule.actions.resize(shape.ranks);
    return schedule;
}

std::vector<ChunkStep> grouped_order(int micro_batches, int chunks, int group) {
    std::vector<ChunkStep> order;
    for (int first = 0; first < micro_batches; first += group)
        for (int chunk = 0; chunk < chunks; ++chunk)
            for (int micro_batch = first; micro_batch < std::min(first + group, micro_batches); ++micro_batch)
                order.push_back({chunk, micro_batch});
    return order;
}

}  // namespace schedule
