#include "schedule/pass/list_passes.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/errors.h"
#include "core/index/integers.h"
#include "schedule/schedule_cells.h"

namespace schedule {

namespace {

using StageOfDirection = std::pair<int, int>;  // direction, stage

StageOfDirection stage_of(const Action& action) { return {action.direction, action.stage}; }

Action whole_stage(ActionKind kind, const StageOfDirection& stage) {
    return {kind, stage.second, -1, 0, static_cast<std::int16_t>(stage.first)};
}

// Cells from `begin` that run as one: an overlapped forward and its backward, or a single cell.
std::size_t slot_length(const std::vector<Action>& list, std::size_t begin) {
    return list[begin].overlaps_next && begin + 1 < list.size() ? 2 : 1;
}

}  // namespace

Schedule merge_backward_halves(const Schedule& schedule) {
    Schedule merged = schedule;
    for (std::vector<Action>& list : merged.actions) {
        std::vector<Action> kept;
        for (std::size_t i = 0; i < list.size(); ++i) {
            kept.push_back(list[i]);
            if (list[i].kind != ActionKind::backward_input || i + 1 == list.size()) continue;
            Action weight = list[i];
            weight.kind = ActionKind::backward_weight;
            if (list[i + 1] != weight) continue;
            kept.back().kind = ActionKind::backward;
            ++i;
        }
        list = std::move(kept);
    }
    return merged;
}

Schedule with_transfers(const Schedule& original) {
    const Schedule schedule = compute_only(original);
    const CellIndex index(schedule);
    Schedule result = schedule;
    for (std::vector<Action>& list : result.actions) list.clear();
    // Tensors that a rank's list has made so far: outputs of forwards, and gradients that it may use.
    std::vector<bool> has_forward(index.size(), false), has_gradient(index.size(), false);
    auto is_ready = [&](const Action& action) {
        Action needed;
        if (!input_cell(schedule, action, needed)) return true;
        const std::size_t cell = index.of(needed);
        return bool(action.kind == ActionKind::forward ? has_forward[cell] : has_gradient[cell]);
    };
    auto put = [&](std::size_t rank, const Action& action) {
        result.actions[rank].push_back(action);
        if (action.kind == ActionKind::forward) has_forward[index.of(action)] = true;
        if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
            has_gradient[index.of(action)] = true;
    };
    auto send = [&](std::size_t rank, const Action& made) {
        const bool is_forward = made.kind == ActionKind::forward;
        if (!is_forward && made.kind != ActionKind::backward && made.kind != ActionKind::backward_input)
            return;
        const int to = made.stage + (is_forward ? 1 : -1);
        if (to < 0 || to >= schedule.stages) return;
        const int receiver = rank_of_stage(schedule, to, made.direction);
        if (std::cmp_equal(receiver, rank)) return;
        Action transfer = made;
        transfer.overlaps_next = false;
        transfer.kind = is_forward ? ActionKind::send_forward : ActionKind::send_backward;
        result.actions[rank].push_back(transfer);
        transfer.kind = is_forward ? ActionKind::receive_forward : ActionKind::receive_backward;
        transfer.stage = to;
        result.actions[receiver].push_back(transfer);
    };
    std::vector<std::size_t> heads(schedule.actions.size(), 0);
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
            const std::vector<Action>& list = schedule.actions[rank];
            std::size_t& head = heads[rank];
            if (head == list.size()) continue;
            const std::size_t end = head + slot_length(list, head);
            if (!std::all_of(list.begin() + head, list.begin() + end, is_ready)) continue;
            for (std::size_t i = head; i < end; ++i) put(rank, list[i]);
            for (std::size_t i = head; i < end; ++i) send(rank, list[i]);
            head = end;
            has_moved = true;
        }
    }
    for (std::size_t rank = 0; rank < heads.size(); ++rank)
        core::require(heads[rank] == schedule.actions[rank].size(),
                      "transfers are added to an order that can be played");
    return result;
}

Schedule with_sharded_parameters(const Schedule& original, int most_gathered) {
    const Schedule schedule = compute_only(original);
    Schedule result = schedule;
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        std::vector<Action>& out = result.actions[rank];
        out.clear();
        std::set<StageOfDirection> gathered;
        auto free_all_but = [&](const std::vector<StageOfDirection>& kept) {
            for (auto stage = gathered.begin(); stage != gathered.end();) {
                const bool stays = std::find(kept.begin(), kept.end(), *stage) != kept.end();
                if (!stays) out.push_back(whole_stage(ActionKind::reshard, *stage));
                stage = stays ? std::next(stage) : gathered.erase(stage);
            }
        };
        for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
            end = begin + slot_length(list, begin);
            // Both stages of an overlapped slot are needed at once, even where the limit is one.
            std::vector<StageOfDirection> next;
            for (std::size_t i = begin; i < list.size() && (i < end || core::count_of(next) < most_gathered);
                 ++i)
                if (std::find(next.begin(), next.end(), stage_of(list[i])) == next.end())
                    next.push_back(stage_of(list[i]));
            free_all_but(next);
            for (const StageOfDirection& stage : next)
                if (gathered.insert(stage).second) out.push_back(whole_stage(ActionKind::unshard, stage));
            out.insert(out.end(), list.begin() + begin, list.begin() + end);
        }
        free_all_but({});
    }
    return result;
}

Schedule with_gradient_reductions(const Schedule& schedule) {
    Schedule result = schedule;
    for (std::vector<Action>& list : result.actions) {
        std::erase_if(list, [](const Action& action) { return action.kind == ActionKind::reduce_gradient; });
        std::map<StageOfDirection, int> left;
        for (const Action& action : list)
            if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight)
                ++left[stage_of(action)];
        std::vector<Action> out;
        for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
            end = begin + slot_length(list, begin);
            out.insert(out.end(), list.begin() + begin, list.begin() + end);
            for (std::size_t i = begin; i < end; ++i) {
                const bool completes =
                    list[i].kind == ActionKind::backward || list[i].kind == ActionKind::backward_weight;
                if (completes && --left[stage_of(list[i])] == 0)
                    out.push_back(whole_stage(ActionKind::reduce_gradient, stage_of(list[i])));
            }
        }
        list = std::move(out);
    }
    return result;
}

}  // namespace schedule
