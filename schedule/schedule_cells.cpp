#include "schedule/schedule_cells.h"

#include <utility>

#include "core/index/integers.h"

namespace schedule {

bool CellIndex::contains(const Action& action) const {
    const auto is_below = [](int number, std::size_t count) {
        return number >= 0 && std::cmp_less(number, count);
    };
    return is_below(action.stage, stages_) && is_below(action.micro_batch, micro_batches_) &&
           is_below(action.segment, parts_) && is_below(action.direction, directions_);
}

CellPositions::CellPositions(const Schedule& schedule) {
    const CellIndex index(schedule);
    for (std::vector<std::int32_t>& of_kind : positions_) of_kind.assign(index.size(), -1);
    for (const std::vector<Action>& list : schedule.actions)
        for (const std::int32_t i : core::indices(list)) {
            if ((!is_compute(list[i].kind) && !is_transfer(list[i].kind)) || !index.contains(list[i]))
                continue;
            std::int32_t& position = positions_[core::position_of(list[i].kind)][index.of(list[i])];
            if (position < 0) position = i;
        }
}

std::int32_t CellPositions::gradient(std::size_t cell) const {
    const std::int32_t full = of(ActionKind::backward, cell);
    return full >= 0 ? full : of(ActionKind::backward_input, cell);
}

std::int32_t CellPositions::release(std::size_t cell) const {
    const std::int32_t full = of(ActionKind::backward, cell);
    return full >= 0 ? full : of(ActionKind::backward_weight, cell);
}

bool input_cell(const Schedule& schedule, const Action& action, Action& needed) {
    const bool is_forward = action.kind == ActionKind::forward;
    if (!is_forward && action.kind != ActionKind::backward && action.kind != ActionKind::backward_input)
        return false;
    needed = action;
    needed.overlaps_next = false;
    needed.stage = is_forward ? action.stage - 1 : action.stage + 1;
    return needed.stage >= 0 && needed.stage < schedule.stages;
}

namespace {

// Steps in which forwards and gradients were made; a weight or local cell needs only its rank's earlier
// cells, which rule "local order" sees to.
class Player {
public:
    explicit Player(const Schedule& schedule)
        : schedule_(schedule),
          index_(schedule),
          forward_(index_.size(), never),
          gradient_(index_.size(), never) {}

    bool is_ready(const Action& action, std::int32_t step) const {
        Action needed;
        if (!index_.contains(action) || !input_cell(schedule_, action, needed)) return true;
        return (action.kind == ActionKind::forward ? forward_ : gradient_)[index_.of(needed)] < step;
    }
    void make(const Action& action, std::int32_t step) {
        if (!index_.contains(action)) return;
        if (action.kind == ActionKind::forward) forward_[index_.of(action)] = step;
        else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
            gradient_[index_.of(action)] = step;
    }

private:
    static constexpr std::int32_t never = 1 << 30;
    const Schedule& schedule_;
    CellIndex index_;
    std::vector<std::int32_t> forward_, gradient_;
};

}  // namespace

Playback play(const Schedule& schedule) {
    Playback playback;
    Player player(schedule);
    for (const std::vector<Action>& list : schedule.actions) playback.step.emplace_back(list.size(), -1);
    playback.waiting_at.assign(schedule.actions.size(), 0);
    bool has_moved = true;
    for (std::int32_t step = 0; has_moved; ++step) {
        has_moved = false;
        for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
            const std::vector<Action>& list = schedule.actions[rank];
            auto& head = playback.waiting_at[rank];
            while (head < core::count_of(list) && !is_compute(list[head].kind)) ++head;
            if (head >= core::count_of(list)) continue;
            const std::int32_t at = head;
            const bool is_pair = list[at].overlaps_next && at + 1 < core::count_of(list);
            if (!player.is_ready(list[at], step) || (is_pair && !player.is_ready(list[at + 1], step)))
                continue;
            for (std::int32_t i = at; i < at + (is_pair ? 2 : 1); ++i) {
                player.make(list[i], step);
                playback.step[rank][i] = step;
                ++head;
            }
            has_moved = true;
        }
    }
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
        std::int32_t& head = playback.waiting_at[rank];
        if (head >= core::count_of(schedule.actions[rank])) head = -1;
        else playback.is_complete = false;
    }
    return playback;
}

}  // namespace schedule
