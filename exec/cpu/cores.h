// Binding of threads to processor cores.
#pragma once

#include <memory>

namespace exec::cpu {

// Binds the calling thread, number `thread` of `threads`, to a core of its own for the lifetime of the
// object, because the scheduler draws threads that exchange messages to one core. Does nothing when there are
// fewer cores than threads. Threads started meanwhile inherit the binding.
class StayOnCore {
public:
    StayOnCore(int thread, int threads);
    ~StayOnCore();
    StayOnCore(const StayOnCore&) = delete;
    StayOnCore& operator=(const StayOnCore&) = delete;

private:
    struct Cores;
    std::unique_ptr<const Cores> before_;  // cores allowed before; null when the thread was not bound
};

// Number of cores that the calling thread may use.
int available_cores();

}  // namespace exec::cpu
