#include <fmt/core.h>

#include <algorithm>

#include "core/index/integers.h"
#include "schedule/schedule_cells.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

namespace schedule {

namespace {

// Column of every cell: the step in which it can run, or its position in the list when the lists cannot be
// played or hold more than compute.
std::vector<std::vector<std::int32_t>> columns_of(const Schedule& schedule, bool& in_steps) {
    const bool is_pure = compute_only(schedule) == schedule;
    Playback playback = play(schedule);
    in_steps = is_pure && playback.is_complete;
    if (in_steps) return std::move(playback.step);
    std::vector<std::vector<std::int32_t>> columns;
    for (const std::vector<Action>& list : schedule.actions) {
        std::vector<std::int32_t>& row = columns.emplace_back();
        for (const std::int32_t i : core::indices(list)) row.push_back(i);
    }
    return columns;
}

}  // namespace

std::string draw(const Schedule& schedule, const Violation* mark, int width) {
    bool in_steps = false;
    const std::vector<std::vector<std::int32_t>> columns = columns_of(schedule, in_steps);
    std::vector<std::vector<std::string>> grid(schedule.actions.size());
    int marked_column = 0, total = 0;
    for (const std::int32_t rank : core::indices(grid))
        for (const std::int32_t i : core::indices(columns[rank])) {
            const int column = columns[rank][i];
            const bool is_marked = mark && mark->rank == rank && mark->position == i;
            std::vector<std::string>& row = grid[rank];
            if (std::cmp_less_equal(row.size(), column)) row.resize(column + 1);
            std::string text = print_action(schedule, schedule.actions[rank][i]);
            if (is_marked) text = "[" + text + "]";
            std::string& cell = row[column];
            cell += (cell.empty() ? "" : "+") + text;
            if (is_marked) marked_column = column;
            total = std::max(total, column + 1);
        }
    const int shown = std::clamp(width, 1, std::max(1, total));
    const int first = std::clamp(marked_column - shown / 2, 0, std::max(0, total - shown));
    std::size_t cell_width = 1;
    for (const std::vector<std::string>& row : grid)
        for (int column = first; column < std::min(first + shown, core::count_of(row)); ++column)
            cell_width = std::max(cell_width, row[column].size());
    const std::size_t rank_width = std::to_string(grid.size()).size();
    std::string text;
    for (const std::int32_t rank : core::indices(grid)) {
        std::string line =
            fmt::format("{} rank {:>{}} |", mark && mark->rank == rank ? '>' : ' ', rank, rank_width);
        if (first > 0) line += " ..";
        for (int column = first; column < first + shown; ++column) {
            const bool has_cell = column < core::count_of(grid[rank]) && !grid[rank][column].empty();
            line += fmt::format(" {:<{}}", has_cell ? grid[rank][column] : in_steps ? "." : "", cell_width);
        }
        if (first + shown < total) line += " ..";
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

}  // namespace schedule
