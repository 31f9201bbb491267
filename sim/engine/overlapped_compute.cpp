#include "sim/engine/overlapped_compute.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/index/integers.h"
#include "sim/cost/collective/nccl.h"

namespace sim {

namespace {

struct Busy {
    double start, end;
    double share;  // of the multiprocessors that NCCL's rings take
    core::Seconds OverlapLoss::* to;
    bool operator<(const Busy& other) const {
        return start != other.start ? start < other.start : end < other.end;
    }
};

bool runs_beside_compute(const schedule::Instruction& instruction) {
    return instruction.kind == schedule::InstructionKind::collective &&
           (instruction.stream == schedule::Stream::data || instruction.pieces > 1);
}

core::Seconds OverlapLoss::* loss_to(const schedule::Instruction& collective) {
    if (collective.stream != schedule::Stream::data) return &OverlapLoss::to_tensor;
    return collective.payload == schedule::PayloadKind::parameter ? &OverlapLoss::to_gathers
                                                                  : &OverlapLoss::to_reductions;
}

OverlapLoss& operator+=(OverlapLoss& sum, const OverlapLoss& more) {
    sum.to_reductions += more.to_reductions;
    sum.to_gathers += more.to_gathers;
    sum.to_tensor += more.to_tensor;
    return sum;
}

// What the compute of a joined instruction loses, which then has durations of its own. `lost_within`: from
// one time to another, asked in order of time.
template <class LostWithin>
OverlapLoss slow_parts(const schedule::RankProgram& list, const Simulation& simulation, std::size_t performer,
                       const schedule::Span& span, LostWithin lost_within, core::Seconds& duration,
                       Durations::Parts& parts) {
    const std::span<const schedule::Instruction> of = list.parts_of(list.instructions[span.instruction]);
    const auto& met = simulation.ends_of_parts[performer];
    const auto ends = met.find(span.instruction);
    const auto first = std::ptrdiff_t(parts.begin[span.instruction]);
    std::vector<core::Seconds> times(parts.times.begin() + first,
                                     parts.times.begin() + first + std::ptrdiff_t(of.size()));
    OverlapLoss all;
    PartClock clock(span.start.value), slowed;
    for (std::size_t k = 0; k < of.size(); ++k) {
        const double start = clock.start(of[k]);
        const double end = ends != met.end() ? ends->second[k].value : start + times[k].value;
        if (of[k].kind == schedule::InstructionKind::compute) {
            const OverlapLoss lost = lost_within(start, end);
            times[k] += lost.all();
            all += lost;
        }
        clock.end(of[k], end);
        slowed.end(of[k], slowed.start(of[k]) + times[k].value);
    }
    if (all.all().value <= 0) return all;
    duration = core::Seconds(slowed.end());
    parts.begin[span.instruction] = core::narrow<std::uint32_t>(parts.times.size());
    parts.times.insert(parts.times.end(), times.begin(), times.end());
    return all;
}

}  // namespace

bool has_collectives_beside_compute(const schedule::Program& program) {
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::Instruction& instruction : list.instructions)
            if (runs_beside_compute(instruction)) return true;
    return false;
}

OverlapLosses slow_overlapped_compute(const schedule::Program& program, const Simulation& simulation,
                                      double loss, const cluster::DeviceSpec& device,
                                      CommunicationCost& costs, Durations& durations) {
    OverlapLosses losses;
    for (const schedule::RankProgram& list : program.classes) losses.emplace_back(list.instructions.size());
    std::vector<bool> seen(program.classes.size(), false);
    for (std::size_t p = 0; p < simulation.timeline.spans.size(); ++p) {
        const std::size_t c = simulation.timeline.class_of[p];
        if (seen[c]) continue;
        seen[c] = true;
        const std::vector<schedule::Instruction>& list = program.classes[c].instructions;
        std::vector<Busy> busy;  // in order of time
        for (const schedule::Span& span : simulation.timeline.spans[p]) {
            const schedule::Instruction& instruction = list[span.instruction];
            if (!runs_beside_compute(instruction) || span.end <= span.start) continue;
            double share = 1;
            if (has_nccl(device) && costs.group_size(instruction.group, program.classes[c].pipeline) > 1)
                share = costs
                            .choice(instruction.collective, instruction.group, instruction.bytes,
                                    program.classes[c].pipeline)
                            .multiprocessors /
                        nccl_multiprocessors(device);
            busy.push_back({simulation.active_from[p][span.instruction].value, span.end.value, share,
                            loss_to(instruction)});
        }
        if (busy.empty()) continue;
        std::sort(busy.begin(), busy.end());
        std::size_t first = 0;
        const auto lost_within = [&](double start, double end) {
            while (first < busy.size() && busy[first].end <= start) ++first;
            OverlapLoss lost;
            for (std::size_t b = first; b < busy.size() && busy[b].start < end; ++b) {
                const double beside = std::min(busy[b].end, end) - std::max(busy[b].start, start);
                lost.*busy[b].to += core::Seconds(loss * busy[b].share * std::max(0.0, beside));
            }
            return lost;
        };
        for (const schedule::Span& span : simulation.timeline.spans[p]) {
            const schedule::Instruction& instruction = list[span.instruction];
            if (instruction.kind != schedule::InstructionKind::compute) continue;
            OverlapLoss& lost = losses[c][span.instruction];
            core::Seconds& duration = durations.of[c][span.instruction];
            if (schedule::is_joined(instruction)) {
                lost = slow_parts(program.classes[c], simulation, p, span, lost_within, duration,
                                  durations.parts[c]);
                continue;
            }
            lost = lost_within(span.start.value, span.end.value);
            duration += lost.all();
        }
    }
    return losses;
}

}  // namespace sim
