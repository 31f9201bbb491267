#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

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

struct Grid {
    std::vector<std::vector<std::string>> rows = {};  // of each rank, by column; empty where nothing begins
    std::optional<std::int32_t> marked_rank = {};
    int marked_column = 0, columns = 0;
    bool in_steps = false;  // columns are steps, and ranks without a cell wait

    std::size_t widest(int first, int last) const {
        std::size_t width = 1;
        for (const std::vector<std::string>& row : rows)
            for (int column = first; column < std::min(last, core::count_of(row)); ++column)
                width = std::max(width, row[column].size());
        return width;
    }
    std::string label(std::int32_t rank) const {
        return fmt::format("{} rank {:>{}} |", marked_rank == rank ? '>' : ' ', rank,
                           std::to_string(rows.size()).size());
    }
    // Columns `first` to before `last`, a line a rank.
    std::string text(int first, int last, std::size_t cell_width, const char* before = "",
                     const char* behind = "") const {
        std::string text;
        for (const std::int32_t rank : core::indices(rows)) {
            std::string line = label(rank) + before;
            for (int column = first; column < last; ++column) {
                const bool has_cell = column < core::count_of(rows[rank]) && !rows[rank][column].empty();
                line += fmt::format(" {:<{}}",
                                    has_cell   ? rows[rank][column]
                                    : in_steps ? "."
                                               : "",
                                    cell_width);
            }
            line += behind;
            line.erase(line.find_last_not_of(' ') + 1);
            text += line + "\n";
        }
        return text;
    }
};

Grid grid_of(const Schedule& schedule, const Violation* mark) {
    Grid grid{.rows = std::vector<std::vector<std::string>>(schedule.actions.size())};
    if (mark) grid.marked_rank = mark->rank;
    const std::vector<std::vector<std::int32_t>> columns = columns_of(schedule, grid.in_steps);
    for (const std::int32_t rank : core::indices(grid.rows))
        for (const std::int32_t i : core::indices(columns[rank])) {
            const int column = columns[rank][i];
            const bool is_marked = mark && mark->rank == rank && mark->position == i;
            std::vector<std::string>& row = grid.rows[rank];
            if (std::cmp_less_equal(row.size(), column)) row.resize(column + 1);
            std::string text = print_action(schedule, schedule.actions[rank][i]);
            if (is_marked) text = "[" + text + "]";
            std::string& cell = row[column];
            cell += (cell.empty() ? "" : "+") + text;
            if (is_marked) grid.marked_column = column;
            grid.columns = std::max(grid.columns, column + 1);
        }
    return grid;
}

}  // namespace

std::string draw(const Schedule& schedule, const Violation* mark, int width) {
    const Grid grid = grid_of(schedule, mark);
    const int shown = std::clamp(width, 1, std::max(1, grid.columns));
    const int first = std::clamp(grid.marked_column - shown / 2, 0, std::max(0, grid.columns - shown));
    return grid.text(first, first + shown, grid.widest(first, first + shown), first > 0 ? " .." : "",
                     first + shown < grid.columns ? " .." : "");
}

std::string draw_in_blocks(const Schedule& schedule, const Violation* mark, std::size_t line_width) {
    const Grid grid = grid_of(schedule, mark);
    const std::size_t cell_width = grid.widest(0, grid.columns);
    const std::size_t label_width = grid.label(0).size();
    const int shown = static_cast<int>(
        line_width > label_width ? std::max<std::size_t>(1, (line_width - label_width) / (cell_width + 1))
                                 : 1);
    if (grid.columns <= shown) return grid.text(0, grid.columns, cell_width);
    std::string text;
    for (int first = 0; first < grid.columns; first += shown) {
        const int last = std::min(first + shown, grid.columns);
        text += fmt::format("{}  {} {} to {}\n", first > 0 ? "\n" : "", grid.in_steps ? "steps" : "cells",
                            first, last - 1);
        text += grid.text(first, last, cell_width);
    }
    return text;
}

}  // namespace schedule
