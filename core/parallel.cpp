#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace core {

void for_each_in_parallel(std::size_t count, int threads,
                          const std::function<void(std::size_t item, int thread)>& work) {
    if (threads <= 0) threads = std::max(1u, std::thread::hardware_concurrency());
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex guard;
    const auto loop = [&](int thread) {
        try {
            for (std::size_t item; (item = next.fetch_add(1)) < count;) work(item, thread);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
            next = count;
        }
    };
    {
        std::vector<std::jthread> others;
        try {
            for (int thread = 1; thread < threads && static_cast<std::size_t>(thread) < count; ++thread)
                others.emplace_back(loop, thread);
        } catch (const std::system_error&) {  // no more threads for this process
        }
        loop(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace core
