#include "jobs/gantt.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/errors.h"

namespace jobs {

namespace {

enum Row : std::size_t {
    acquire,
    prepare,
    compute,
    evaluate,
    checkpoint,
    lost,
    detect,
    restart,
    wait,
    upload,
    release,
    keep_alive,
    row_count
};
constexpr std::array<const char*, row_count> names = {"acquire",    "prepare", "compute", "evaluate",
                                                      "checkpoint", "lost",    "detect",  "restart",
                                                      "wait",       "upload",  "release", "keep alive"};

Row row_of(StretchKind kind) {
    switch (kind) {
        case StretchKind::acquire: return acquire;
        case StretchKind::image:
        case StretchKind::data:
        case StretchKind::warm_up: return prepare;
        case StretchKind::training: return compute;
        case StretchKind::lost: return lost;
        case StretchKind::detect: return detect;
        case StretchKind::restart: return restart;
        case StretchKind::wait: return wait;
        case StretchKind::upload: return upload;
        case StretchKind::release: return release;
        case StretchKind::keep_alive: return keep_alive;
    }
    throw core::InternalError("broken promise: every kind of stretch has a row");
}

using Seconds = core::Seconds;
using Rows = std::array<std::vector<Seconds>, row_count>;  // time by row and column

void add_training(const JobModel& model, const Stretch& stretch, Seconds begin, Seconds end,
                  std::size_t column, Rows& rows) {
    const TrainingAxis axis = model.axis(stretch.step);
    const auto at = [&](Seconds time) { return axis.shares(stretch.axis_begin + (time - stretch.begin)); };
    const TrainingAxis::Shares before = at(begin), after = at(end);
    rows[compute][column] += after.computing - before.computing;
    rows[evaluate][column] += after.evaluating - before.evaluating;
    rows[checkpoint][column] += after.checkpointing - before.checkpointing;
}

char shade(double share) {
    constexpr double most = 2.0 / 3, third = 1.0 / 3, tenth = 0.1;
    return share <= 0 ? ' ' : share < tenth ? '.' : share < third ? ':' : share < most ? '+' : '#';
}

}  // namespace

std::string gantt_text(const JobModel& model, const std::vector<Stretch>& stretches, int columns) {
    if (stretches.empty()) return {};
    const Seconds total = stretches.back().end;
    const Seconds width = total / double(columns);
    Rows rows;
    for (std::vector<Seconds>& row : rows) row.resize(std::size_t(columns));
    for (const Stretch& stretch : stretches) {
        const auto column_at = [&](Seconds time) {
            return std::min(std::size_t(time / width), std::size_t(columns) - 1);
        };
        for (std::size_t c = column_at(stretch.begin); c <= column_at(stretch.end); ++c) {
            const Seconds begin = std::max(stretch.begin, width * double(c));
            const Seconds end =
                c + 1 == std::size_t(columns) ? stretch.end : std::min(stretch.end, width * double(c + 1));
            if (end <= begin) continue;
            if (stretch.kind == StretchKind::training) add_training(model, stretch, begin, end, c, rows);
            else rows[row_of(stretch.kind)][c] += end - begin;
        }
    }
    std::string text;
    for (std::size_t row = 0; row < row_count; ++row) {
        Seconds sum;
        std::string cells;
        for (Seconds time : rows[row]) {
            sum += time;
            cells += shade(time / width);
        }
        if (sum.value <= 0) continue;
        text += fmt::format("  {:<10} |{}| {}\n", names[row], cells, core::format(sum));
    }
    return text + fmt::format("  {:<10}  0{:>{}}\n", "", core::format(total), columns);
}

std::string gantt_csv(const std::vector<Stretch>& stretches) {
    std::string text = "kind,begin_s,end_s\n";
    for (const Stretch& stretch : stretches)
        text += fmt::format("{},{},{}\n", name_of(stretch.kind), stretch.begin.value, stretch.end.value);
    return text;
}

core::Value activities_of(const std::vector<Stretch>& stretches) {
    // Finer than the pixels of a wide chart.
    constexpr double rows_of_a_kind = 3000;
    struct Run {
        Seconds begin, end, time;
        std::int64_t times = 0;
    };
    Seconds total;
    for (const Stretch& stretch : stretches) total = std::max(total, stretch.end);
    std::map<StretchKind, std::vector<Run>> runs;
    for (const Stretch& stretch : stretches) {
        if (!(stretch.end > stretch.begin)) continue;
        std::vector<Run>& own = runs[stretch.kind];
        if (own.empty() || stretch.begin - own.back().end > total / rows_of_a_kind)
            own.push_back({stretch.begin, stretch.end, {}, 0});
        own.back().end = stretch.end;
        own.back().time += stretch.end - stretch.begin;
        ++own.back().times;
    }
    core::Value rows = core::Value::array();
    for (const auto& [kind, own] : runs)
        for (const Run& run : own) {
            core::Value row = core::Value::table();
            row["activity"] = name_of(kind);
            row["from_s"] = run.begin.value;
            row["to_s"] = run.end.value;
            row["seconds"] = run.time.value;
            row["times"] = run.times;
            rows.append(std::move(row));
        }
    return rows;
}

}  // namespace jobs
