// When each instruction began and ended: the common result of simulator and executor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"

namespace schedule {

struct Span {
    std::uint32_t instruction = 0;  // in the class's list
    core::Seconds start, end;       // since the start of the step
};

// Spans per performer: simulated classes or executed ranks. `class_of[i]` says which class performer i ran,
// `rank[i]` its (representative) global rank.
struct Timeline {
    std::vector<std::int32_t> class_of;
    std::vector<std::int32_t> rank;
    std::vector<std::vector<Span>> spans;
    core::Seconds makespan;
};

struct MemorySample {
    core::Seconds time;
    std::array<core::Bytes, memory_kind_count> bytes;  // held after this moment, by kind
};

struct MemoryTimeline {
    std::vector<std::vector<MemorySample>> samples;                   // per performer, in time order
    std::vector<core::Bytes> peak;                                    // per performer, of the sum
    std::vector<std::array<core::Bytes, memory_kind_count>> at_peak;  // by kind at that moment
};

}  // namespace schedule
