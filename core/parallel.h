// Independent pieces of work on several cores.
#pragma once

#include <cstddef>
#include <functional>

namespace core {

// work(item, thread) once for every item of 0 ... count - 1, by at most `threads` threads (0 = one a core)
// numbered from 0, the caller's own. Items end in any order, so none may touch what another does. Threads
// only add speed: one that cannot be started is done without. An exception ends the work, the first is thrown
// here.
void for_each_in_parallel(std::size_t count, int threads,
                          const std::function<void(std::size_t item, int thread)>& work);

}  // namespace core
