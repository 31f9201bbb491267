#include "sim/engine/overlapped_compute.h"

#include <algorithm>
#include <vector>

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
        for (const schedule::Span& span : simulation.timeline.spans[p]) {
            if (list[span.instruction].kind != schedule::InstructionKind::compute) continue;
            while (first < busy.size() && busy[first].end <= span.start.value) ++first;
            OverlapLoss& lost = losses[c][span.instruction];
            for (std::size_t b = first; b < busy.size() && busy[b].start < span.end.value; ++b) {
                const double beside =
                    std::min(busy[b].end, span.end.value) - std::max(busy[b].start, span.start.value);
                lost.*busy[b].to += core::Seconds(loss * busy[b].share * std::max(0.0, beside));
            }
            durations.of[c][span.instruction] += lost.all();
        }
    }
    return losses;
}

}  // namespace sim
