#include "exec/runtime/rank_threads.h"

#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "core/errors.h"

namespace exec {

void run_in_threads(int count, const std::function<void(int)>& work,
                    const std::function<void(const std::string&)>& stop) {
    std::vector<std::thread> threads;
    std::optional<std::string> failure;
    try {
        threads.reserve(count);
        for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
    } catch (const std::exception& error) {  // std::system_error, or no memory for it
        failure = fmt::format("starting a thread for rank {} of {}: {}", threads.size(), count, error.what());
        stop(*failure);
    }
    for (std::thread& thread : threads) thread.join();
    if (failure) throw core::MachineError(*failure);
}

}  // namespace exec
