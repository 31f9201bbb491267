#include "schedule/schedule_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/schedule_cells.h"

namespace schedule {

namespace {

// Beyond these no list makes sense, and a hostile file must not make us allocate by its numbers.
constexpr int greatest_stage = 65535, greatest_micro_batch = 1 << 20, greatest_segment = 4095,
              greatest_direction = 255;

constexpr std::array kinds = {
    ActionKind::forward,         ActionKind::backward,      ActionKind::backward_input,
    ActionKind::backward_weight, ActionKind::recompute,     ActionKind::send_forward,
    ActionKind::receive_forward, ActionKind::send_backward, ActionKind::receive_backward,
    ActionKind::unshard,         ActionKind::reshard,       ActionKind::reduce_gradient,
    ActionKind::optimizer_step};

bool concerns_whole_stage(ActionKind kind) { return !is_compute(kind) && !is_transfer(kind); }

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
        text.remove_suffix(1);
    return text;
}

class CellReader {
public:
    CellReader(std::string_view cell) : rest_(cell) {}

    bool number(int greatest, std::int32_t& value) {
        const auto [end, failure] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
        if (failure != std::errc{} || value < 0 || value > greatest || rest_.front() == '-') return false;
        rest_.remove_prefix(end - rest_.data());
        return true;
    }
    bool small(int greatest, std::int16_t& value) {
        std::int32_t wide = 0;
        if (!number(greatest, wide)) return false;
        value = static_cast<std::int16_t>(wide);
        return true;
    }
    bool skip(std::string_view word) {
        if (!rest_.starts_with(word)) return false;
        rest_.remove_prefix(word.size());
        return true;
    }
    std::optional<ActionKind> kind() {
        std::size_t length = 0;
        while (length < rest_.size() &&
               ((rest_[length] >= 'A' && rest_[length] <= 'Z') || rest_[length] == '_'))
            ++length;
        const std::string_view word = rest_.substr(0, length);
        for (const ActionKind kind : kinds)
            if (code_of(kind) == word) {
                rest_.remove_prefix(length);
                return kind;
            }
        return std::nullopt;
    }
    bool is_done() const { return rest_.empty(); }

private:
    std::string_view rest_;
};

std::optional<Action> parse_action(std::string_view text) {
    CellReader reader(trimmed(text));
    Action action;
    if (reader.skip("d") && (!reader.small(greatest_direction, action.direction) || !reader.skip(":")))
        return std::nullopt;
    if (!reader.number(greatest_stage, action.stage)) return std::nullopt;
    const std::optional<ActionKind> kind = reader.kind();
    if (!kind) return std::nullopt;
    action.kind = *kind;
    if (concerns_whole_stage(*kind)) {
        action.micro_batch = -1;
        if (*kind == ActionKind::optimizer_step && !reader.is_done() &&
            !reader.number(greatest_micro_batch, action.micro_batch))
            return std::nullopt;
    } else if (!reader.number(greatest_micro_batch, action.micro_batch)) {
        return std::nullopt;
    }
    if (reader.skip(".") && !reader.small(greatest_segment, action.segment)) return std::nullopt;
    return reader.is_done() ? std::optional(action) : std::nullopt;
}

// "(0F3;3B1)OVERLAP_F_B" becomes two actions, the first marked.
bool parse_overlap(std::string_view cell, std::vector<Action>& list) {
    const std::size_t middle = cell.find(';'), close = cell.find(')');
    if (middle == std::string_view::npos || close == std::string_view::npos || close < middle ||
        cell.substr(close + 1) != "OVERLAP_F_B")
        return false;
    std::optional<Action> first = parse_action(cell.substr(1, middle - 1));
    const std::optional<Action> second = parse_action(cell.substr(middle + 1, close - middle - 1));
    if (!first || !second || first->kind != ActionKind::forward || !is_backward_part(second->kind))
        return false;
    first->overlaps_next = true;
    list.push_back(*first);
    list.push_back(*second);
    return true;
}

// Rank that most cells of each (direction, stage) stand on; -1 where there is no cell.
std::vector<std::int32_t> majority_ranks(const Schedule& schedule) {
    std::vector<std::map<int, int>> votes(schedule.stages * schedule.directions);
    for (int rank = 0; rank < schedule.ranks; ++rank)
        for (const Action& action : schedule.actions[rank])
            ++votes[action.direction * schedule.stages + action.stage][rank];
    std::vector<std::int32_t> ranks;
    for (const std::map<int, int>& vote : votes) {
        int best = -1, count = 0;
        for (const auto& [rank, n] : vote)
            if (n > count) {
                best = rank;
                count = n;
            }
        ranks.push_back(best);
    }
    return ranks;
}

void infer_placement(Schedule& schedule) {
    std::vector<std::int32_t> found = majority_ranks(schedule);
    auto agrees = [&](StagePlacement placement) {
        schedule.placement = placement;
        for (int direction = 0; direction < schedule.directions; ++direction)
            for (int stage = 0; stage < schedule.stages; ++stage) {
                const int rank = found[direction * schedule.stages + stage];
                if (rank >= 0 && rank != rank_of_stage(schedule, stage, direction)) return false;
            }
        return true;
    };
    if (schedule.directions == 1 && (agrees(StagePlacement::loop) || agrees(StagePlacement::v_shape))) return;
    if (schedule.directions == 2 && agrees(StagePlacement::bidirectional)) return;
    schedule.placement = StagePlacement::custom;
    for (std::int32_t& rank : found) rank = std::max(rank, 0);
    schedule.stage_ranks = std::move(found);
}

std::string stem_of(const std::string& file_name) {
    const std::size_t slash = file_name.find_last_of('/');
    std::string name = slash == std::string::npos ? file_name : file_name.substr(slash + 1);
    if (name.ends_with(".csv")) name.resize(name.size() - 4);
    return name;
}

}  // namespace

std::optional<Schedule> parse_schedule(const std::string& text, const std::string& file_name,
                                       core::Diagnostics& diagnostics) {
    constexpr std::size_t most_diagnostics =
        20;  // a file that is no schedule at all would else give one per cell
    const std::size_t errors_before = diagnostics.error_count();
    Schedule schedule;
    schedule.name = stem_of(file_name);
    int line = 0;
    std::size_t begin = 0;
    while (begin < text.size()) {
        ++line;
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        std::vector<Action>& list = schedule.actions.emplace_back();
        for (std::size_t cell_begin = begin; cell_begin <= end;) {
            const std::size_t cell_end = std::min(text.find(',', cell_begin), end);
            const std::string_view cell =
                trimmed(std::string_view(text).substr(cell_begin, cell_end - cell_begin));
            if (!cell.empty()) {
                const std::optional<Action> action = cell.front() == '(' ? std::nullopt : parse_action(cell);
                if (action) list.push_back(*action);
                else if (cell.front() != '(' || !parse_overlap(cell, list)) {
                    diagnostics.error({file_name, line, static_cast<int>(cell_begin - begin) + 1}, "",
                                      fmt::format("{} is no cell of a schedule", core::in_quotes(cell)),
                                      "cells are stage, action, micro-batch: 2F0, 2B0, 2I0, 2W0, 2SEND_F0, "
                                      "2RECV_B0, 2UNSHARD, 2REDUCE_GRAD, (0F3;3B1)OVERLAP_F_B");
                    if (diagnostics.error_count() - errors_before >= most_diagnostics) return std::nullopt;
                }
            }
            cell_begin = cell_end + 1;
        }
        begin = end + 1;
    }
    while (!schedule.actions.empty() && schedule.actions.back().empty()) schedule.actions.pop_back();
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    if (schedule.actions.empty()) {
        diagnostics.error({file_name, 0, 0}, "", "the schedule has no cells",
                          "one row per rank, cells such as 0F0,0B0");
        return std::nullopt;
    }
    schedule.ranks = core::count_of(schedule.actions);
    schedule.stages = schedule.micro_batches = 1;
    schedule.is_forward_only = true;
    for (const std::vector<Action>& list : schedule.actions)
        for (const Action& action : list) {
            schedule.stages = std::max(schedule.stages, action.stage + 1);
            schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
            schedule.segments = std::max(schedule.segments, action.segment + 1);
            schedule.directions = std::max(schedule.directions, action.direction + 1);
            if (is_backward_part(action.kind)) schedule.is_forward_only = false;
        }
    // A few far-apart numbers must not claim a table of their product: a real list has at least one cell per
    // stage and micro-batch.
    std::size_t cells = 0;
    for (const std::vector<Action>& list : schedule.actions) cells += list.size();
    const std::size_t expected = CellIndex(schedule).size();
    if (expected > 64 * cells + 4096) {
        diagnostics.error(
            {file_name, 0, 0}, "",
            fmt::format("{} cells cannot cover {} stages, {} micro-batches, {} segments and {} directions",
                        cells, schedule.stages, schedule.micro_batches, schedule.segments,
                        schedule.directions),
            "stages, micro-batches, segments and directions count from 0 without gaps");
        return std::nullopt;
    }
    infer_placement(schedule);
    return schedule;
}

std::string print_action(const Schedule& schedule, const Action& action) {
    std::string text;
    if (schedule.directions > 1) text += fmt::format("d{}:", action.direction);
    text += fmt::format("{}{}", action.stage, code_of(action.kind));
    if (action.micro_batch >= 0 &&
        (!concerns_whole_stage(action.kind) || action.kind == ActionKind::optimizer_step))
        text += std::to_string(action.micro_batch);
    if (schedule.cuts_sequences() && !concerns_whole_stage(action.kind))
        text += fmt::format(".{}", action.segment);
    return text;
}

std::string print_schedule(const Schedule& schedule) {
    std::string text;
    for (const std::vector<Action>& list : schedule.actions) {
        for (std::size_t i = 0; i < list.size(); ++i) {
            if (i > 0) text += ',';
            if (list[i].overlaps_next && i + 1 < list.size()) {
                text += fmt::format("({};{})OVERLAP_F_B", print_action(schedule, list[i]),
                                    print_action(schedule, list[i + 1]));
                ++i;
            } else {
                text += print_action(schedule, list[i]);
            }
        }
        text += '\n';
    }
    return text;
}

}  // namespace schedule
