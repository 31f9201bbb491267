// Ranks as threads of this process: all of them, or none that is left behind.
#pragma once

#include <functional>
#include <string>

namespace exec {

// work(0) ... work(count - 1), each in a thread of its own, none of which may throw; returns when all have
// ended. When one cannot be started, those that were are told by `stop`, with the reason, and waited for:
// core::MachineError.
void run_in_threads(int count, const std::function<void(int)>& work,
                    const std::function<void(const std::string&)>& stop);

}  // namespace exec
