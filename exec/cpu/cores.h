// Where threads run.
#pragma once

#include <memory>

namespace exec::cpu {

// A thread of `threads` has a core to itself, as long as this lives, when there are enough: two that exchange
// messages are otherwise drawn to one core. Does nothing when there are not. Threads that are started
// meanwhile have that one core too.
class StayOnCore {
public:
    StayOnCore(int thread, int threads);
    ~StayOnCore();
    StayOnCore(const StayOnCore&) = delete;
    StayOnCore& operator=(const StayOnCore&) = delete;

private:
    struct Cores;
    std::unique_ptr<const Cores> before_;  // null where it stays nowhere
};

// Cores that this thread may use.
int available_cores();

}  // namespace exec::cpu
