#include "sim/report/breakdown.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

// In order of precedence: of all that happens at one moment the first counts.
enum Part : std::uint8_t {
    compute,
    recompute,
    optimizer,
    host,
    tensor_parallel,
    expert,
    sharding,
    data_parallel,
    pipeline,
    offload,
    part_count
};

Part part_of_collective(const Instruction& instruction) {
    if (instruction.group == schedule::GroupKind::expert &&
        instruction.collective == schedule::CollectiveKind::all_to_all)
        return expert;
    if (instruction.group == schedule::GroupKind::tensor ||
        instruction.group == schedule::GroupKind::context || instruction.group == schedule::GroupKind::tokens)
        return tensor_parallel;
    if (instruction.group == schedule::GroupKind::tied_stages) return pipeline;
    if (instruction.payload == schedule::PayloadKind::parameter) return sharding;
    return data_parallel;
}

struct Edge {
    double time;
    Part part;
    int change;
};

}  // namespace

std::size_t critical_performer(const schedule::Program& program, const Simulation& simulation) {
    std::size_t best = 0;
    std::optional<core::Seconds> best_busy;
    for (std::size_t p = 0; p < simulation.end.size(); ++p) {
        if (simulation.end[p] < simulation.timeline.makespan) continue;
        const auto& instructions = program.classes[simulation.timeline.class_of[p]].instructions;
        core::Seconds busy;
        for (const schedule::Span& span : simulation.timeline.spans[p])
            if (instructions[span.instruction].kind == InstructionKind::compute)
                busy += span.end - span.start;
        if (!best_busy || busy > *best_busy) {
            best_busy = busy;
            best = p;
        }
    }
    return best;
}

Breakdown break_down(const schedule::Program& program, const Simulation& simulation,
                     const std::vector<std::vector<core::Seconds>>& host_time, std::size_t performer,
                     bool has_concurrent_streams, const OverlapLosses& losses,
                     const std::optional<TimeWindow>& window) {
    const std::size_t class_index = simulation.timeline.class_of[performer];
    const std::vector<Instruction>& instructions = program.classes[class_index].instructions;
    std::vector<Edge> edges;
    edges.reserve(2 * instructions.size());
    const TimeWindow within = window.value_or(TimeWindow{core::Seconds(0), simulation.timeline.makespan});
    const auto add = [&](core::Seconds from, core::Seconds to, Part part) {
        if (window) {
            from = std::max(from, within.from);
            to = std::min(to, within.to);
        }
        if (to <= from) return;
        edges.push_back({from.value, part, 1});
        edges.push_back({to.value, part, -1});
    };
    for (const schedule::Span& span : simulation.timeline.spans[performer]) {
        const Instruction& instruction = instructions[span.instruction];
        const core::Seconds active_from = simulation.active_from[performer][span.instruction];
        // What the host adds comes at the end: the device is done and waits for launches.
        const core::Seconds on_device =
            std::max(span.start, span.end - host_time[class_index][span.instruction]);
        switch (instruction.kind) {
            case InstructionKind::compute: {
                OverlapLoss lost;
                if (!losses.empty()) lost = losses[class_index][span.instruction];
                const core::Seconds reduces_from = std::max(span.start, on_device - lost.to_reductions),
                                    gathers_from = std::max(span.start, reduces_from - lost.to_gathers),
                                    pieces_from = std::max(span.start, gathers_from - lost.to_tensor);
                add(span.start, pieces_from,
                    instruction.phase == schedule::ComputePhase::recompute ? recompute : compute);
                add(pieces_from, gathers_from, tensor_parallel);
                add(gathers_from, reduces_from, sharding);
                add(reduces_from, on_device, data_parallel);
                add(on_device, span.end, host);
                break;
            }
            case InstructionKind::optimizer_step:
            case InstructionKind::zero_gradients:
            case InstructionKind::gradient_norm:
            case InstructionKind::update_norm:
                add(span.start, on_device, optimizer);
                add(on_device, span.end, host);
                break;
            case InstructionKind::collective:
                add(active_from, span.end, part_of_collective(instruction));
                break;
            case InstructionKind::copy: add(span.start, span.end, offload); break;
            case InstructionKind::receive: add(active_from, span.end, pipeline); break;
            case InstructionKind::send:
                if (!has_concurrent_streams) add(span.start, span.end, pipeline);
                break;
        }
    }
    std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.time < b.time; });
    std::array<double, part_count> total{};
    std::array<int, part_count> active{};
    double now = within.from.value;
    for (const Edge& edge : edges) {
        if (edge.time > now) {
            for (std::size_t part = 0; part < part_count; ++part)
                if (active[part] > 0) {
                    total[part] += edge.time - now;
                    break;
                }
            now = edge.time;
        }
        active[edge.part] += edge.change;
    }
    Breakdown result;
    result.compute = core::Seconds(total[compute]);
    result.recompute = core::Seconds(total[recompute]);
    result.optimizer = core::Seconds(total[optimizer]);
    result.host = core::Seconds(total[host]);
    result.tensor_parallel = core::Seconds(total[tensor_parallel]);
    result.expert = core::Seconds(total[expert]);
    result.sharding = core::Seconds(total[sharding]);
    result.data_parallel = core::Seconds(total[data_parallel]);
    result.pipeline = core::Seconds(total[pipeline]);
    result.offload = core::Seconds(total[offload]);
    result.bubble = std::max(core::Seconds(0), within.to - within.from - sum(result));
    return result;
}

const std::vector<BreakdownPart>& breakdown_parts() {
    static const std::vector<BreakdownPart> parts = {
        {"compute", &Breakdown::compute},   {"recompute", &Breakdown::recompute},
        {"bubble", &Breakdown::bubble},     {"tensor_parallel", &Breakdown::tensor_parallel},
        {"pipeline", &Breakdown::pipeline}, {"data_parallel", &Breakdown::data_parallel},
        {"sharding", &Breakdown::sharding}, {"expert", &Breakdown::expert},
        {"offload", &Breakdown::offload},   {"optimizer", &Breakdown::optimizer},
        {"host", &Breakdown::host},
    };
    return parts;
}

core::Seconds sum(const Breakdown& breakdown) {
    core::Seconds total;
    for (const BreakdownPart& part : breakdown_parts()) total += breakdown.*part.part;
    return total;
}

}  // namespace sim
