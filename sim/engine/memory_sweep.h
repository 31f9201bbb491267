// Buffers taken and given back over time, by kind: the memory half of a simulation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace sim {

using MemoryByKind = std::array<core::Bytes, schedule::memory_kind_count>;
core::Bytes sum(const MemoryByKind& held);

// Held beside a Program's buffers, from the start of one instruction of a class's list to the end of another
// (sim/cost/framework/device_memory.h).
struct ExtraBuffer {
    schedule::MemoryKind kind = schedule::MemoryKind::workspace;
    core::Bytes bytes;
    std::uint32_t take_at = 0, give_back_at = 0;
};
struct ExtraMemory {
    MemoryByKind persistent{};  // from start to end
    std::array<double, schedule::memory_kind_count> scale = {
        1, 1, 1, 1, 1, 1, 1};  // of the Program's buffers, where a framework stores a kind in another type
    std::vector<ExtraBuffer> buffers;
};

// What one performer's sweep says beside the timeline.
struct MemoryPeak {
    core::Bytes persistent;                    // held from start to end
    MemoryByKind of_kind{};                    // each at its own peak
    std::optional<std::uint32_t> instruction;  // that took the last buffer before the peak of the sum;
                                               // nothing when what is persistent is the peak
};

// Adds one performer to `memory`: its class's list with the span of every instruction. Buffers are taken at
// the start and given back at the end of an instruction; at one moment the effects of earlier listed
// instructions come first, so a buffer handed on in a list is never counted twice.
MemoryPeak sweep_memory(const schedule::RankProgram& program, const ExtraMemory& extra,
                        const std::vector<schedule::Span>& spans, bool keeps_samples,
                        schedule::MemoryTimeline& memory);

// The first moment at which more than `limit` is held.
struct Overflow {
    std::optional<std::uint32_t>
        instruction;  // that asks for it; nothing: what is persistent is too much before the first
    core::Seconds time;
    core::Bytes asked;    // by the instruction
    MemoryByKind held{};  // with it
};
std::optional<Overflow> first_overflow(const schedule::RankProgram& program, const ExtraMemory& extra,
                                       const std::vector<schedule::Span>& spans, core::Bytes limit);

}  // namespace sim
