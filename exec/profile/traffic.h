// What leaves a rank when it performs an instruction: the same count for profiles and comparisons.
#pragma once

#include <cstddef>

#include "core/units.h"
#include "schedule/program/program.h"

namespace exec {

// On average over the members of a collective: that of a ring. Nothing for what is no communication, and for
// a collective of one.
inline core::Bytes bytes_sent(const schedule::Instruction& instruction, std::size_t members) {
    if (instruction.kind == schedule::InstructionKind::send) return instruction.bytes;
    if (instruction.kind != schedule::InstructionKind::collective || members < 2) return {};
    const double n = static_cast<double>(members), share = (n - 1) / n;
    return instruction.bytes *
           (instruction.collective == schedule::CollectiveKind::all_reduce ? 2 * share : share);
}

}  // namespace exec
