#include "exec/runtime/rank_threads.h"

#include <exception>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace exec {

void run_in_threads(int count, const std::function<void(int)>& work,
                    const std::function<void(const std::string&)>& stop) {
    std::vector<std::thread> threads;
    std::string obstacle;
    try {
        threads.reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
    } catch (const std::exception& failure) {  // std::system_error, or no memory for it
        obstacle =
            fmt::format("starting a thread for rank {} of {}: {}", threads.size(), count, failure.what());
        stop(obstacle);
    }
    for (std::thread& thread : threads) thread.join();
    if (!obstacle.empty()) throw core::MachineError(obstacle);
}

}  // namespace exec
