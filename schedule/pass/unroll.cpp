#include "schedule/pass/unroll.h"

namespace schedule {

Schedule unroll_sequences(Schedule order) {
    if (!order.cuts_sequences()) return order;
    Schedule result = order;
    result.segments = 1;
    result.micro_batches = order.micro_batches * order.segments;
    for (std::vector<Action>& actions : result.actions)
        for (Action& action : actions) {
            if (action.micro_batch >= 0)
                action.micro_batch = action.micro_batch * order.segments + action.segment;
            action.segment = 0;
        }
    return result;
}

Schedule unroll_directions(Schedule order) {
    if (order.directions == 1) return order;
    Schedule result = order;
    result.placement = StagePlacement::custom;
    result.directions = 1;
    result.stages = order.stages * order.directions;
    result.micro_batches = order.micro_batches * order.directions;
    result.stage_ranks.clear();
    for (int direction = 0; direction < order.directions; ++direction)
        for (int stage = 0; stage < order.stages; ++stage)
            result.stage_ranks.push_back(rank_of_stage(order, stage, direction));
    for (std::vector<Action>& actions : result.actions)
        for (Action& action : actions) {
            action.stage += action.direction * order.stages;
            if (action.micro_batch >= 0) action.micro_batch += action.direction * order.micro_batches;
            action.direction = 0;
        }
    return result;
}

}  // namespace schedule
