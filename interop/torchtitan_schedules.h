// Schedules by torch.distributed.pipelining's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace interop {

// Ours of which torch has one of the same order (docs/schedules.md), for messages.
std::vector<std::string> schedules_with_torch_names();
std::optional<std::string> torch_schedule(const std::string& ours);
std::optional<std::string> schedule_of_torch(const std::string& theirs);

}  // namespace interop
