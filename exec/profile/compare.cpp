#include "exec/profile/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/profile/traffic.h"

namespace exec {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

std::string kind_of(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: return std::string(schedule::name_of(instruction.phase));
        case InstructionKind::collective:
            return fmt::format("{} {}", schedule::name_of(instruction.collective),
                               schedule::name_of(instruction.payload));
        case InstructionKind::send:
        case InstructionKind::receive:
        case InstructionKind::optimizer_step:
        case InstructionKind::zero_gradients:
        case InstructionKind::copy:
        case InstructionKind::gradient_norm:
        case InstructionKind::update_norm: return std::string(schedule::name_of(instruction.kind));
    }
    throw core::InternalError(
        fmt::format("instructions of kind {} have no name", static_cast<int>(instruction.kind)));
}

// Mean over ranks of the time a rank spends in each kind.
std::map<std::string, double> times_of(const schedule::Program& program, const schedule::Timeline& timeline,
                                       std::map<std::string, int>& counts) {
    std::map<std::string, double> times;
    const double ranks = program.class_of_rank.size();
    counts.clear();
    for (const std::int32_t rank_class : program.class_of_rank) {
        const auto performers =
            static_cast<double>(std::count(timeline.class_of.begin(), timeline.class_of.end(), rank_class));
        for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
            if (timeline.class_of[p] != rank_class) continue;
            for (const schedule::Span& span : timeline.spans[p])
                times[kind_of(program.classes[rank_class].instructions[span.instruction])] +=
                    (span.end - span.start).value / performers / ranks;
        }
    }
    for (const schedule::RankProgram& list : program.classes)
        for (const Instruction& instruction : list.instructions) ++counts[kind_of(instruction)];
    return times;
}

std::vector<core::Bytes> peaks_by_rank(const schedule::Program& program, const schedule::Timeline& timeline,
                                       const schedule::MemoryTimeline& memory) {
    std::vector<core::Bytes> peaks(program.class_of_rank.size());
    for (const std::int32_t rank : core::indices(peaks))
        for (std::size_t p = 0; p < memory.peak.size() && p < timeline.class_of.size(); ++p)
            if (timeline.rank[p] == rank || timeline.class_of[p] == program.class_of_rank[rank]) {
                peaks[rank] = memory.peak[p];
                if (timeline.rank[p] == rank) break;
            }
    return peaks;
}

// By kind of link, for one timeline: seconds of the mean rank.
std::map<bool, double> link_times(const schedule::Program& program, const schedule::Timeline& timeline,
                                  int per_host, std::map<bool, double>& bytes) {
    std::map<bool, double> times;
    const std::size_t ranks = program.class_of_rank.size();
    bytes.clear();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::size_t rank_class = program.class_of_rank[rank];
        const schedule::RankCoordinates coordinates =
            schedule::coordinates_of(program.plan.layout, static_cast<int>(rank));
        std::size_t performer = timeline.class_of.size();
        for (std::size_t p = 0; p < timeline.class_of.size(); ++p)
            if (timeline.rank[p] == static_cast<std::int32_t>(rank) ||
                (performer == timeline.class_of.size() &&
                 timeline.class_of[p] == program.class_of_rank[rank]))
                performer = p;
        if (performer == timeline.class_of.size()) continue;
        for (const schedule::Span& span : timeline.spans[performer]) {
            const Instruction& instruction = program.classes[rank_class].instructions[span.instruction];
            bool crosses = false;
            std::size_t members = 0;
            if (instruction.kind == InstructionKind::collective) {
                const std::vector<int> group =
                    schedule::members_of(program, static_cast<int>(rank), instruction);
                members = group.size();
                if (members < 2) continue;
                for (const int member : group)
                    crosses |= per_host > 0 && member / per_host != static_cast<int>(rank) / per_host;
            } else if (instruction.kind == InstructionKind::send ||
                       instruction.kind == InstructionKind::receive) {
                const int peer = schedule::rank_of(program.plan.layout,
                                                   {coordinates.data, coordinates.tensor, *instruction.peer});
                crosses = per_host > 0 && peer / per_host != static_cast<int>(rank) / per_host;
            } else {
                continue;
            }
            times[crosses] += (span.end - span.start).value / ranks;
            bytes[crosses] += bytes_sent(instruction, members).value;
        }
    }
    return times;
}

// Memory by kind of the performer that holds most.
std::array<core::Bytes, schedule::memory_kind_count> fullest(const schedule::MemoryTimeline& memory) {
    std::size_t most = 0;
    for (std::size_t p = 1; p < memory.peak.size(); ++p)
        if (memory.peak[p] > memory.peak[most]) most = p;
    return most < memory.at_peak.size() ? memory.at_peak[most]
                                        : std::array<core::Bytes, schedule::memory_kind_count>{};
}

bool is_communication(const std::string& kind) {
    return kind == "send" || kind == "receive" || kind.find("all_") == 0 || kind.find("reduce_") == 0 ||
           kind.find("broadcast") == 0;
}

// Shares from which on something is worth a word: of the step, that a prediction misses; of the computing
// time, that other processes had the cores; of the profiled speed, by which the machine was faster or slower.
constexpr double notable_error = 0.05, notable_loss = 0.05, notable_speed_change = 0.03;

std::string verdict_of(const Comparison& comparison, const ComparisonContext& context) {
    const double error = (comparison.predicted_step - comparison.measured_step).value;
    if (comparison.kinds.empty() || std::abs(error) <= notable_error * comparison.measured_step.value)
        return {};
    if (!exceeds_noise(comparison))
        return "the plan's own repetitions differ by as much as prediction and measurement: no error can be "
               "told from this run; more --steps, or a quieter machine, would tell";
    const auto miss = [](const KindComparison& kind) { return (kind.predicted - kind.measured).value; };
    // Of those that err in the direction of the step.
    const auto worst = std::max_element(
        comparison.kinds.begin(), comparison.kinds.end(),
        [&](const KindComparison& a, const KindComparison& b) { return miss(a) * error < miss(b) * error; });
    if (miss(*worst) * error <= 0)
        return "no kind of instruction errs as the step does: ranks wait for each other at other moments "
               "than predicted";
    std::string text = fmt::format("{} misses most: {} predicted, {} measured", worst->kind,
                                   core::format(worst->predicted), core::format(worst->measured));
    if (is_communication(worst->kind))
        text +=
            "; waiting for the other rank is counted in it, so what that rank did before it may be the cause";
    else if (context.lost_share > notable_loss)
        text += fmt::format("; other processes had the ranks' cores for {:.0f}% of the computing time",
                            100 * context.lost_share);
    if (comparison.speed_ratio > 0 && std::abs(comparison.speed_ratio - 1) > notable_speed_change)
        text += fmt::format(
            "; the machine ran at {:.2f} of the speed at which it was profiled: at that speed the prediction "
            "would be {:+.1f}% off",
            comparison.speed_ratio,
            100 * (comparison.predicted_step.value / comparison.speed_ratio / comparison.measured_step.value -
                   1));
    return text;
}

double error_of(double predicted, double measured) {
    return measured > 0 ? 100 * (predicted - measured) / measured : 0;
}

}  // namespace

Comparison compare(const schedule::Program& program, const schedule::Timeline& predicted,
                   const schedule::MemoryTimeline& predicted_memory, core::Seconds predicted_step,
                   const schedule::Timeline& measured, const schedule::MemoryTimeline& measured_memory,
                   core::Seconds measured_step, const ComparisonContext& context) {
    Comparison result;
    result.predicted_step = predicted_step;
    result.measured_step = measured_step;
    result.measured_interval = context.measured_interval;
    result.predicted_interval = {predicted_step * context.profile_low, predicted_step * context.profile_high};
    std::map<std::string, int> counts;
    const std::map<std::string, double> expected = times_of(program, predicted, counts),
                                        seen = times_of(program, measured, counts);
    for (const auto& [kind, count] : counts) {
        const auto time = [&, name = kind](const std::map<std::string, double>& times) {
            const auto found = times.find(name);
            return core::Seconds(found == times.end() ? 0 : found->second);
        };
        result.kinds.push_back({kind, count, time(expected), time(seen)});
    }
    std::stable_sort(
        result.kinds.begin(), result.kinds.end(),
        [](const KindComparison& a, const KindComparison& b) { return a.measured > b.measured; });
    result.predicted_peaks = peaks_by_rank(program, predicted, predicted_memory);
    result.measured_peaks = peaks_by_rank(program, measured, measured_memory);
    for (const core::Bytes peak : result.predicted_peaks)
        result.predicted_peak = std::max(result.predicted_peak, peak);
    for (const core::Bytes peak : result.measured_peaks)
        result.measured_peak = std::max(result.measured_peak, peak);

    std::map<bool, double> bytes;
    std::map<bool, double> link_expected = link_times(program, predicted, context.ranks_per_host, bytes);
    const std::map<bool, double> link_seen = link_times(program, measured, context.ranks_per_host, bytes);
    for (const auto& [crosses, time] : link_seen)
        result.links.push_back({crosses ? "between hosts" : "within a host", core::Bytes(bytes[crosses]),
                                core::Seconds(link_expected[crosses]), core::Seconds(time)});
    const auto held_expected = fullest(predicted_memory), held_seen = fullest(measured_memory);
    for (std::size_t kind = 0; kind < held_seen.size(); ++kind)
        if (held_expected[kind].value > 0 || held_seen[kind].value > 0)
            result.memory.push_back({std::string(schedule::name_of(static_cast<schedule::MemoryKind>(kind))),
                                     held_expected[kind], held_seen[kind]});
    if (context.profiled_probe.value > 0 && context.measured_probe.value > 0)
        result.speed_ratio = context.profiled_probe / context.measured_probe;
    result.verdict = verdict_of(result, context);
    return result;
}

bool exceeds_noise(const Comparison& comparison) {
    const StepInterval &predicted = comparison.predicted_interval, &measured = comparison.measured_interval;
    if (measured.high.value <= 0) return true;
    return predicted.low > measured.high || measured.low > predicted.high;
}

namespace {

core::Value to_value(const StepInterval& interval) {
    core::Value value = core::Value::array();
    value.append(interval.low.value);
    value.append(interval.high.value);
    return value;
}

}  // namespace

core::Value to_value(const Comparison& comparison) {
    core::Value value = core::Value::table();
    value["exceeds_noise"] = exceeds_noise(comparison);
    if (comparison.measured_interval.high.value > 0) {
        value["predicted_interval_s"] = to_value(comparison.predicted_interval);
        value["measured_interval_s"] = to_value(comparison.measured_interval);
    }
    core::Value kinds = core::Value::array();
    for (const KindComparison& kind : comparison.kinds) {
        core::Value entry = core::Value::table();
        entry["kind"] = kind.kind;
        entry["instructions"] = kind.instructions;
        entry["predicted_s"] = kind.predicted.value;
        entry["measured_s"] = kind.measured.value;
        kinds.append(entry);
    }
    value["kinds"] = kinds;
    core::Value ranks = core::Value::array();
    for (std::size_t rank = 0; rank < comparison.measured_peaks.size(); ++rank) {
        core::Value entry = core::Value::table();
        entry["rank"] = rank;
        entry["predicted_peak_gib"] = core::to_gibibytes(comparison.predicted_peaks[rank]);
        entry["measured_peak_gib"] = core::to_gibibytes(comparison.measured_peaks[rank]);
        ranks.append(entry);
    }
    value["ranks"] = ranks;
    value["links"] = core::Value::array();
    for (const LinkComparison& link : comparison.links) {
        core::Value entry = core::Value::table();
        entry["link"] = link.link;
        entry["bytes"] = link.bytes.value;
        entry["predicted_s"] = link.predicted.value;
        entry["measured_s"] = link.measured.value;
        value["links"].append(std::move(entry));
    }
    value["memory"] = core::Value::array();
    for (const MemoryComparison& memory : comparison.memory) {
        core::Value entry = core::Value::table();
        entry["kind"] = memory.kind;
        entry["predicted_gib"] = core::to_gibibytes(memory.predicted);
        entry["measured_gib"] = core::to_gibibytes(memory.measured);
        value["memory"].append(std::move(entry));
    }
    if (comparison.speed_ratio > 0) {
        value["speed_ratio"] = comparison.speed_ratio;
        value["error_at_profiled_speed_pct"] = error_of(
            comparison.predicted_step.value / comparison.speed_ratio, comparison.measured_step.value);
    }
    value["verdict"] = comparison.verdict;
    return value;
}

std::string to_text(const Comparison& comparison) {
    std::string text = fmt::format("{:<36}{:>12}{:>12}{:>9}\n", "", "predicted", "measured", "error");
    const auto line = [&](const std::string& what, const std::string& predicted, const std::string& measured,
                          double error) {
        text += fmt::format("{:<36}{:>12}{:>12}{:>8.1f}%\n", what, predicted, measured, error);
    };
    line("step", core::format(comparison.predicted_step), core::format(comparison.measured_step),
         error_of(comparison.predicted_step.value, comparison.measured_step.value));
    if (comparison.measured_interval.high.value > 0)
        text += fmt::format(
            "  four of five repetitions: {} to {} predicted, {} to {} measured: {}\n",
            core::format(comparison.predicted_interval.low), core::format(comparison.predicted_interval.high),
            core::format(comparison.measured_interval.low), core::format(comparison.measured_interval.high),
            exceeds_noise(comparison) ? "the error is more than that noise" : "within that noise");
    line("peak memory of a rank", core::format(comparison.predicted_peak),
         core::format(comparison.measured_peak),
         error_of(comparison.predicted_peak.value, comparison.measured_peak.value));
    text += "a rank's time, waiting included:\n";
    for (const KindComparison& kind : comparison.kinds)
        line(fmt::format("  {} ({})", kind.kind, kind.instructions), core::format(kind.predicted),
             core::format(kind.measured), error_of(kind.predicted.value, kind.measured.value));
    if (!comparison.links.empty()) text += "its communication by link, waiting included:\n";
    for (const LinkComparison& link : comparison.links)
        line(fmt::format("  {}, {} a step", link.link, core::format(link.bytes)),
             core::format(link.predicted), core::format(link.measured),
             error_of(link.predicted.value, link.measured.value));
    text += "the fullest rank's memory at its peak:\n";
    for (const MemoryComparison& memory : comparison.memory)
        line("  " + memory.kind, core::format(memory.predicted), core::format(memory.measured),
             error_of(memory.predicted.value, memory.measured.value));
    if (comparison.speed_ratio > 0)
        text += fmt::format(
            "machine: {:.2f} of the speed at which it was profiled; at that speed the prediction is {:+.1f}% "
            "off\n",
            comparison.speed_ratio,
            error_of(comparison.predicted_step.value / comparison.speed_ratio,
                     comparison.measured_step.value));
    if (!comparison.verdict.empty()) text += comparison.verdict + "\n";
    return text;
}

}  // namespace exec
