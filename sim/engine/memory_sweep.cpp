#include "sim/engine/memory_sweep.h"

#include <algorithm>
#include <span>

#include "core/index/integers.h"

namespace sim {

namespace {

// `sequence` is twice the position in the list, plus one for effects at the end: the order at one moment.
struct Effect {
    double time;
    std::uint32_t sequence;
    schedule::MemoryKind kind;
    core::Bytes change;
};

MemoryByKind persistent(const schedule::RankProgram& program, const ExtraMemory& extra) {
    MemoryByKind held = extra.persistent;
    for (const schedule::Buffer& buffer : program.buffers)
        if (buffer.is_persistent)
            held[core::position_of(buffer.kind)] +=
                buffer.bytes * extra.scale[core::position_of(buffer.kind)];
    return held;
}

std::vector<Effect> effects_of(const schedule::RankProgram& program, const ExtraMemory& extra,
                               const std::vector<schedule::Span>& spans) {
    std::vector<Effect> effects;
    effects.reserve(program.buffer_pool.size() + 2 * extra.buffers.size());
    const auto scale = [&](schedule::MemoryKind kind) { return extra.scale[core::position_of(kind)]; };
    const auto take = [&](std::uint32_t i, schedule::MemoryKind kind, core::Bytes bytes) {
        effects.push_back({spans[i].start.value, 2 * i, kind, bytes});
    };
    const auto give_back = [&](std::uint32_t i, schedule::MemoryKind kind, core::Bytes bytes) {
        effects.push_back({spans[i].end.value, 2 * i + 1, kind, -bytes});
    };
    for (std::uint32_t i = 0; i < program.instructions.size(); ++i) {
        const schedule::Instruction& instruction = program.instructions[i];
        for (const std::uint32_t b : program.allocates(instruction))
            if (const schedule::Buffer& buffer = program.buffers[b]; !buffer.is_persistent)
                take(i, buffer.kind, buffer.bytes * scale(buffer.kind));
        for (const std::uint32_t b : program.frees(instruction))
            if (const schedule::Buffer& buffer = program.buffers[b]; !buffer.is_persistent)
                give_back(i, buffer.kind, buffer.bytes * scale(buffer.kind));
    }
    for (const ExtraBuffer& buffer : extra.buffers) {
        take(buffer.take_at, buffer.kind, buffer.bytes);
        give_back(buffer.give_back_at, buffer.kind, buffer.bytes);
    }
    std::stable_sort(effects.begin(), effects.end(), [](const Effect& a, const Effect& b) {
        return a.time != b.time ? a.time < b.time : a.sequence < b.sequence;
    });
    return effects;
}

}  // namespace

core::Bytes sum(const MemoryByKind& held) {
    core::Bytes total;
    for (core::Bytes bytes : held) total += bytes;
    return total;
}

MemoryPeak sweep_memory(const schedule::RankProgram& program, const ExtraMemory& extra,
                        const std::vector<schedule::Span>& spans, bool keeps_samples,
                        schedule::MemoryTimeline& memory) {
    MemoryByKind held = persistent(program, extra);
    const std::vector<Effect> effects = effects_of(program, extra, spans);
    std::vector<schedule::MemorySample> samples;
    if (keeps_samples) samples.push_back({core::Seconds(0), held});
    MemoryPeak result;
    result.of_kind = held;
    result.persistent = sum(held);
    MemoryByKind at_peak = held;
    core::Bytes total = sum(held), peak = total;
    for (std::size_t e = 0; e < effects.size(); ++e) {
        const Effect& effect = effects[e];
        core::Bytes& of_kind = held[core::position_of(effect.kind)];
        of_kind += effect.change;
        total += effect.change;
        core::Bytes& most = result.of_kind[core::position_of(effect.kind)];
        most = std::max(most, of_kind);
        if (total > peak) {
            peak = total;
            at_peak = held;
            result.instruction = effect.sequence / 2;
        }
        const bool is_last_of_moment = e + 1 == effects.size() || effects[e + 1].time != effect.time;
        if (!keeps_samples || !is_last_of_moment) continue;
        if (samples.back().time.value == effect.time) samples.back().bytes = held;
        else samples.push_back({core::Seconds(effect.time), held});
    }
    memory.samples.push_back(std::move(samples));
    memory.peak.push_back(peak);
    memory.at_peak.push_back(at_peak);
    return result;
}

std::optional<Overflow> first_overflow(const schedule::RankProgram& program, const ExtraMemory& extra,
                                       const std::vector<schedule::Span>& spans, core::Bytes limit) {
    Overflow overflow;
    overflow.held = persistent(program, extra);
    core::Bytes total = sum(overflow.held);
    if (total > limit) {
        overflow.asked = total;
        return overflow;
    }
    for (const Effect& effect : effects_of(program, extra, spans)) {
        overflow.held[core::position_of(effect.kind)] += effect.change;
        total += effect.change;
        if (total <= limit) continue;
        overflow.instruction = effect.sequence / 2;
        overflow.time = core::Seconds(effect.time);
        overflow.asked = effect.change;
        return overflow;
    }
    return std::nullopt;
}

}  // namespace sim
