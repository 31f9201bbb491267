#include "exec/compare.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>

namespace exec {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

std::string kind_of(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: return std::string(schedule::name_of(instruction.phase));
        case InstructionKind::collective: return fmt::format("{} {}", schedule::name_of(instruction.collective), schedule::name_of(instruction.payload));
        default: return std::string(schedule::name_of(instruction.kind));
    }
}

// Mean over ranks of the time a rank spends in each kind.
std::map<std::string, double> times_of(const schedule::Program& program, const schedule::Timeline& timeline, std::map<std::string, int>& counts) {
    std::map<std::string, double> times;
    const double ranks = static_cast<double>(program.class_of_rank.size());
    counts.clear();
    for (const std::int32_t rank_class : program.class_of_rank) {
        const auto performers = static_cast<double>(std::count(timeline.class_of.begin(), timeline.class_of.end(), rank_class));
        for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
            if (timeline.class_of[p] != rank_class) continue;
            for (const schedule::Span& span : timeline.spans[p])
                times[kind_of(program.classes[static_cast<std::size_t>(rank_class)].instructions[span.instruction])] +=
                    (span.end - span.start).value / performers / ranks;
        }
    }
    for (const schedule::RankProgram& list : program.classes)
        for (const Instruction& instruction : list.instructions) ++counts[kind_of(instruction)];
    return times;
}

std::vector<core::Bytes> peaks_by_rank(const schedule::Program& program, const schedule::Timeline& timeline, const schedule::MemoryTimeline& memory) {
    std::vector<core::Bytes> peaks(program.class_of_rank.size());
    for (std::size_t rank = 0; rank < peaks.size(); ++rank)
        for (std::size_t p = 0; p < memory.peak.size() && p < timeline.class_of.size(); ++p)
            if (timeline.rank[p] == static_cast<std::int32_t>(rank) || timeline.class_of[p] == program.class_of_rank[rank]) {
                peaks[rank] = memory.peak[p];
                if (timeline.rank[p] == static_cast<std::int32_t>(rank)) break;
            }
    return peaks;
}

double error_of(double predicted, double measured) { return measured > 0 ? 100 * (predicted - measured) / measured : 0; }

}  // namespace

Comparison compare(const schedule::Program& program, const schedule::Timeline& predicted, const schedule::MemoryTimeline& predicted_memory,
                   core::Seconds predicted_step, const schedule::Timeline& measured, const schedule::MemoryTimeline& measured_memory,
                   core::Seconds measured_step) {
    Comparison result;
    result.predicted_step = predicted_step;
    result.measured_step = measured_step;
    std::map<std::string, int> counts;
    const std::map<std::string, double> expected = times_of(program, predicted, counts), seen = times_of(program, measured, counts);
    for (const auto& [kind, count] : counts) {
        const auto time = [&, name = kind](const std::map<std::string, double>& times) {
            const auto found = times.find(name);
            return core::Seconds(found == times.end() ? 0 : found->second);
        };
        result.kinds.push_back({kind, count, time(expected), time(seen)});
    }
    std::stable_sort(result.kinds.begin(), result.kinds.end(), [](const KindComparison& a, const KindComparison& b) { return a.measured > b.measured; });
    result.predicted_peaks = peaks_by_rank(program, predicted, predicted_memory);
    result.measured_peaks = peaks_by_rank(program, measured, measured_memory);
    for (const core::Bytes peak : result.predicted_peaks) result.predicted_peak = std::max(result.predicted_peak, peak);
    for (const core::Bytes peak : result.measured_peaks) result.measured_peak = std::max(result.measured_peak, peak);
    return result;
}

core::Value to_value(const Comparison& comparison) {
    core::Value value = core::Value::table();
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
    return value;
}

std::string to_text(const Comparison& comparison) {
    std::string text = fmt::format("{:<36}{:>12}{:>12}{:>9}\n", "", "predicted", "measured", "error");
    const auto line = [&](const std::string& what, const std::string& predicted, const std::string& measured, double error) {
        text += fmt::format("{:<36}{:>12}{:>12}{:>8.1f}%\n", what, predicted, measured, error);
    };
    line("step", core::format(comparison.predicted_step), core::format(comparison.measured_step),
         error_of(comparison.predicted_step.value, comparison.measured_step.value));
    line("peak memory of a rank", core::format(comparison.predicted_peak), core::format(comparison.measured_peak),
         error_of(comparison.predicted_peak.value, comparison.measured_peak.value));
    text += "a rank's time, waiting included:\n";
    for (const KindComparison& kind : comparison.kinds)
        line(fmt::format("  {} ({})", kind.kind, kind.instructions), core::format(kind.predicted), core::format(kind.measured),
             error_of(kind.predicted.value, kind.measured.value));
    return text;
}

}  // namespace exec
