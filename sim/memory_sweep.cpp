#include "sim/memory_sweep.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/diagnostics.h"

namespace sim {

namespace {

using ByKind = std::array<core::Bytes, schedule::memory_kind_count>;

// `sequence` is twice the position in the list, plus one for effects at the end: the order at one moment.
struct Effect {
    double time;
    std::uint32_t sequence;
    std::uint32_t buffer;
    bool takes;
};

core::Bytes sum(const ByKind& held) {
    core::Bytes total;
    for (core::Bytes bytes : held) total += bytes;
    return total;
}

}  // namespace

void sweep_memory(const schedule::RankProgram& program, const std::vector<schedule::Span>& spans, bool keeps_samples, schedule::MemoryTimeline& memory) {
    ByKind held{};
    for (const schedule::Buffer& buffer : program.buffers)
        if (buffer.is_persistent) held[static_cast<std::size_t>(buffer.kind)] += buffer.bytes;

    std::vector<Effect> effects;
    effects.reserve(program.buffer_pool.size());
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
        const schedule::Instruction& instruction = program.instructions[i];
        const auto position = static_cast<std::uint32_t>(2 * i);
        for (std::uint32_t buffer : program.allocates(instruction)) effects.push_back({spans[i].start.value, position, buffer, true});
        for (std::uint32_t buffer : program.frees(instruction)) effects.push_back({spans[i].end.value, position + 1, buffer, false});
    }
    std::sort(effects.begin(), effects.end(), [](const Effect& a, const Effect& b) { return a.time != b.time ? a.time < b.time : a.sequence < b.sequence; });

    std::vector<schedule::MemorySample> samples;
    if (keeps_samples) samples.push_back({core::Seconds(0), held});
    ByKind at_peak = held;
    core::Bytes total = sum(held), peak = total;
    for (std::size_t e = 0; e < effects.size(); ++e) {
        const Effect& effect = effects[e];
        const schedule::Buffer& buffer = program.buffers[effect.buffer];
        if (!buffer.is_persistent) {
            const core::Bytes change = effect.takes ? buffer.bytes : -buffer.bytes;
            held[static_cast<std::size_t>(buffer.kind)] += change;
            total += change;
            if (total > peak) {
                peak = total;
                at_peak = held;
            }
        }
        const bool is_last_of_moment = e + 1 == effects.size() || effects[e + 1].time != effect.time;
        if (!keeps_samples || !is_last_of_moment) continue;
        if (samples.back().time.value == effect.time) samples.back().bytes = held;
        else samples.push_back({core::Seconds(effect.time), held});
    }
    memory.samples.push_back(std::move(samples));
    memory.peak.push_back(peak);
    memory.at_peak.push_back(at_peak);
}

}  // namespace sim
