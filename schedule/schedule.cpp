#include "schedule/schedule.h"

#include <algorithm>
#include <cstddef>

#include "core/errors.h"

namespace schedule {

std::string_view code_of(ActionKind kind) {
    switch (kind) {
        case ActionKind::forward: return "F";
        case ActionKind::backward: return "B";
        case ActionKind::backward_input: return "I";
        case ActionKind::backward_weight: return "W";
        case ActionKind::recompute: return "R";
        case ActionKind::send_forward: return "SEND_F";
        case ActionKind::receive_forward: return "RECV_F";
        case ActionKind::send_backward: return "SEND_B";
        case ActionKind::receive_backward: return "RECV_B";
        case ActionKind::unshard: return "UNSHARD";
        case ActionKind::reshard: return "RESHARD";
        case ActionKind::reduce_gradient: return "REDUCE_GRAD";
        case ActionKind::optimizer_step: return "OPT";
    }
    throw core::InternalError("broken promise: every action kind has a code");
}

int rank_of_stage(StagePlacement placement, int ranks, int stage) {
    core::require(placement == StagePlacement::loop || placement == StagePlacement::v_shape ||
                      placement == StagePlacement::bidirectional,
                  "a custom placement is asked through its schedule");
    const int within = stage % ranks;
    const bool is_mirrored = placement == StagePlacement::v_shape && (stage / ranks) % 2 == 1;
    return is_mirrored ? ranks - 1 - within : within;
}

int rank_of_stage(const Schedule& schedule, int stage, int direction) {
    if (schedule.placement == StagePlacement::custom)
        return schedule.stage_ranks[direction * schedule.stages + stage];
    const int rank = rank_of_stage(schedule.placement, schedule.ranks, stage);
    return direction == 1 ? schedule.ranks - 1 - rank : rank;
}

Schedule compute_only(const Schedule& schedule) {
    Schedule result = schedule;
    for (std::vector<Action>& list : result.actions)
        std::erase_if(list, [](const Action& action) { return !is_compute(action.kind); });
    return result;
}

}  // namespace schedule
