// Names of what the ranks of a Program exchange. Times that were measured of an exchange itself, by the ranks
// of the plan, stand under them in a device's measured_operators and win over links.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"

namespace schedule {

// "exchange all_reduce, group 1 at 0, 3407872 B": all groups of that kind with members at that pipeline
// coordinate at the same time; `tied_ranks` as in ParameterBucket, `bytes` as in Instruction.
std::string collective_signature(CollectiveKind kind, GroupKind group, int pipeline,
                                 const std::vector<std::int32_t>& tied_ranks, core::Bytes bytes);
// "exchange send, 0 to 1, 65536 B": from every rank at one pipeline coordinate to its counterpart at another.
std::string transfer_signature(int from, int to, core::Bytes bytes);
bool is_exchange(std::string_view signature);

// Pipeline coordinates that take part in a reduction of a tied bucket; empty for every other collective.
const std::vector<std::int32_t>& tied_ranks_of(const RankProgram& list, const Instruction& collective);

}  // namespace schedule
