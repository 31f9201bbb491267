// The text form shared with PyTorch's pipelining and the zero-bubble code: one row per rank, cells such as 2F0 (stage, action, micro-batch), comma separated.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics.h"
#include "schedule/schedule.h"

namespace schedule {

// Cells: F forward, B full backward, I backward for input, W backward for weight; empty cells are waiting. Communication and shard cells
// (SEND_F, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) are accepted and dropped: they are lowering's business.
std::optional<Schedule> parse_schedule(const std::string& text, const std::string& file_name, core::Diagnostics& diagnostics);
std::string print_schedule(const Schedule& schedule);

}  // namespace schedule
