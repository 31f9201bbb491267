// Rules 1 to 4 of a schedule, then the others (verify_transfers.cpp, verify_state.cpp) when these hold.
#include <fmt/core.h>

#include "core/index/integers.h"
#include "schedule/schedule_cells.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"
#include "schedule/verify_rules.h"

namespace schedule {

namespace {

int position_of(std::size_t index) { return core::narrow<int>(index); }

// Is the cell one the counts of the schedule allow at all? Then it can be looked up.
bool check_counts(const Schedule& schedule, const Action& action, int rank, int position,
                  std::vector<Violation>& violations) {
    Action probe = action;
    if (!is_compute(action.kind) && !is_transfer(action.kind)) probe.micro_batch = probe.segment = 0;
    if (CellIndex(schedule).contains(probe)) return true;
    violations.push_back(
        {"completeness",
         fmt::format("rank {} cell {}: {} is outside {} stages, {} micro-batches, {} segments, {} directions",
                     rank, position, print_action(schedule, action), schedule.stages, schedule.micro_batches,
                     schedule.segments, schedule.directions),
         rank, position});
    return false;
}

void check_completeness(const Schedule& schedule, std::vector<Violation>& violations) {
    const CellIndex index(schedule);
    const CellPositions positions(schedule);
    std::vector<std::vector<bool>> seen(5, std::vector<bool>(index.size(), false));
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        for (std::size_t i = 0; i < list.size(); ++i) {
            const Action& action = list[i];
            if (!check_counts(schedule, action, rank, position_of(i), violations) || !is_compute(action.kind))
                continue;
            auto violate = [&](const std::string& what) {
                violations.push_back(
                    {"completeness",
                     fmt::format("rank {} cell {}: {} {}", rank, i, print_action(schedule, action), what),
                     rank, position_of(i)});
            };
            if (schedule.is_forward_only && action.kind != ActionKind::forward)
                violate("stands in a forward-only schedule");
            const std::size_t cell = index.of(action);
            if (seen[core::position_of(action.kind)][cell]) violate("is there twice");
            seen[core::position_of(action.kind)][cell] = true;
            const bool is_half =
                action.kind == ActionKind::backward_input || action.kind == ActionKind::backward_weight;
            if (is_half && positions.of(ActionKind::backward, cell) >= 0)
                violate("repeats a part of the full backward B");
        }
    }
    for (int direction = 0; direction < schedule.directions; ++direction)
        for (int stage = 0; stage < schedule.stages; ++stage)
            for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch)
                for (int segment = 0; segment < schedule.segments; ++segment) {
                    Action action{ActionKind::forward, stage, micro_batch, static_cast<std::int16_t>(segment),
                                  static_cast<std::int16_t>(direction)};
                    const std::size_t cell = index.of(action);
                    const int rank = rank_of_stage(schedule, stage, direction);
                    auto missing = [&](ActionKind kind, const char* hint) {
                        action.kind = kind;
                        violations.push_back({"completeness",
                                              fmt::format("rank {}: {} is missing{}", rank,
                                                          print_action(schedule, action), hint),
                                              rank, std::nullopt});
                    };
                    if (!seen[0][cell]) missing(ActionKind::forward, "");
                    if (schedule.is_forward_only || seen[1][cell]) continue;
                    if (!seen[2][cell] && !seen[3][cell]) missing(ActionKind::backward, " (B, or I and W)");
                    else if (!seen[2][cell]) missing(ActionKind::backward_input, ", its W is there");
                    else if (!seen[3][cell]) missing(ActionKind::backward_weight, ", its I is there");
                }
}

void check_placement(const Schedule& schedule, std::vector<Violation>& violations) {
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        for (std::size_t i = 0; i < list.size(); ++i) {
            const Action& action = list[i];
            if (action.stage < 0 || action.stage >= schedule.stages || action.direction < 0 ||
                action.direction >= schedule.directions)
                continue;
            const int home = rank_of_stage(schedule, action.stage, action.direction);
            if (home != rank)
                violations.push_back(
                    {"placement",
                     fmt::format("rank {} cell {}: {} belongs on rank {}, where stage {} lives", rank, i,
                                 print_action(schedule, action), home, action.stage),
                     rank, position_of(i)});
        }
    }
}

void check_local_order(const Schedule& schedule, std::vector<Violation>& violations) {
    const CellIndex index(schedule);
    const CellPositions positions(schedule);
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        for (std::size_t i = 0; i < list.size(); ++i) {
            const Action& action = list[i];
            if (!is_compute(action.kind) || !index.contains(action) ||
                rank_of_stage(schedule, action.stage, action.direction) != rank)
                continue;
            auto violate = [&](const std::string& what) {
                violations.push_back(
                    {"local order",
                     fmt::format("rank {} cell {}: {} {}", rank, i, print_action(schedule, action), what),
                     rank, position_of(i)});
            };
            // Position of another kind of the same cell, when it comes later than this one (what is missing
            // is rule 1's).
            auto comes_later = [&](ActionKind kind, std::size_t cell) {
                return positions.of(kind, cell) > position_of(i);
            };
            const std::size_t cell = index.of(action);
            if (action.kind != ActionKind::forward && comes_later(ActionKind::forward, cell))
                violate("runs before its forward");
            if (action.kind == ActionKind::backward_weight && comes_later(ActionKind::backward_input, cell))
                violate("runs before its backward for input");
            if (action.kind == ActionKind::recompute && positions.gradient(cell) >= 0 &&
                positions.gradient(cell) < position_of(i))
                violate("runs after the backward it is for");
            if (action.segment > 0 && action.kind == ActionKind::forward &&
                comes_later(ActionKind::forward, cell - 1))
                violate("runs before the segment before it");
            const bool makes_gradient =
                action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
            if (makes_gradient && action.segment + 1 < schedule.segments &&
                positions.gradient(cell + 1) > position_of(i))
                violate("runs before the backward of the segment after it");
            if (action.overlaps_next) {
                const bool has_partner = i + 1 < list.size() && is_backward_part(list[i + 1].kind) &&
                                         action.kind == ActionKind::forward;
                if (!has_partner) violate("overlaps with what is no backward");
                else if (index.contains(list[i + 1]) && index.of(list[i + 1]) == cell)
                    violate("overlaps with its own backward");
            }
        }
    }
}

void check_progress(const Schedule& schedule, std::vector<Violation>& violations) {
    const Playback playback = play(schedule);
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const int position = playback.waiting_at[rank];
        if (position < 0) continue;
        const std::vector<Action>& list = schedule.actions[rank];
        const Action* waiting = &list[position];
        Action needed;
        // Of an overlapped pair either half may be what waits: the one whose input was never made.
        auto is_missing = [&](const Action& action) {
            if (!input_cell(schedule, action, needed)) return false;
            const int home = rank_of_stage(schedule, needed.stage, needed.direction);
            const std::int32_t r = home;
            for (std::size_t i = 0; i < schedule.actions[r].size(); ++i) {
                const Action& other = schedule.actions[r][i];
                const bool is_it =
                    other.stage == needed.stage && other.micro_batch == needed.micro_batch &&
                    other.segment == needed.segment && other.direction == needed.direction &&
                    (needed.kind == ActionKind::forward
                         ? other.kind == ActionKind::forward
                         : other.kind == ActionKind::backward || other.kind == ActionKind::backward_input);
                if (is_it) return playback.step[r][i] < 0;
            }
            return true;
        };
        if (!is_missing(*waiting) && waiting->overlaps_next) is_missing(*++waiting);
        violations.push_back(
            {"progress",
             fmt::format("rank {} cell {}: {} waits for ever for {} of rank {}", rank, position,
                         print_action(schedule, *waiting), print_action(schedule, needed),
                         rank_of_stage(schedule, needed.stage, needed.direction)),
             rank, position});
    }
}

}  // namespace

std::vector<Violation> verify(const Schedule& schedule) { return verify(schedule, ScheduleLimits{}); }

std::vector<Violation> verify(const Schedule& schedule, const ScheduleLimits& limits) {
    std::vector<Violation> violations;
    if (schedule.ranks < 1 || schedule.stages < 1 || schedule.micro_batches < 1 || schedule.segments < 1 ||
        schedule.directions < 1 || std::cmp_not_equal(schedule.actions.size(), schedule.ranks)) {
        violations.push_back(
            {"completeness",
             fmt::format("{} lists for {} ranks, {} stages and {} micro-batches", schedule.actions.size(),
                         schedule.ranks, schedule.stages, schedule.micro_batches)});
        return violations;
    }
    check_completeness(schedule, violations);
    check_placement(schedule, violations);
    check_local_order(schedule, violations);
    if (!violations.empty()) return violations;
    check_progress(schedule, violations);
    if (!violations.empty()) return violations;
    check_transfers(schedule, limits, violations);
    check_memory(schedule, limits, violations);
    check_sharded_parameters(schedule, limits, violations);
    check_gradient_order(schedule, violations);
    return violations;
}

}  // namespace schedule
