// A thread that no signal interrupts: signals are for the program's main thread, or for one that it starts.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace exec::transport {

template <class Work>
std::thread start_signal_free(Work work) {
    // A thread begins with its starter's mask.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread(std::move(work));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace exec::transport
