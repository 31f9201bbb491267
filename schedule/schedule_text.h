// The text form shared with PyTorch's pipelining and the zero-bubble code: one row per rank, cells such as
// 2F0 (stage, action, micro-batch), comma separated.
//
//   2F0 2I0 2W0 2B0 2R0      compute; an empty cell is waiting
//   2SEND_F0 2RECV_B0        transfers
//   2UNSHARD 2RESHARD 2REDUCE_GRAD 2OPT 2OPT0      a whole stage (OPT with a micro-batch: one per version)
//   (0F3;3B1)OVERLAP_F_B     forward and backward in one slot
//   d1:2F0 2F0.1             pipeline direction, sequence segment
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "schedule/schedule.h"

namespace schedule {

// Every cell is kept. Stages, micro-batches, parts of sequences and directions are counted from the cells;
// the placement is the one most cells of each stage agree with. What is well-formed but wrong (a missing
// forward, a stage on two ranks) is left to verify. `name` is the file's name without folder and extension.
std::optional<Schedule> parse_schedule(const std::string& text, const std::string& file_name,
                                       core::Diagnostics& diagnostics);
std::string print_schedule(const Schedule& schedule);
// "2F0"; with directions or parts of sequences only where the schedule has several.
std::string print_action(const Schedule& schedule, const Action& action);

}  // namespace schedule
