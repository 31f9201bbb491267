#include "apps/termination.h"

#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include <fmt/core.h>

namespace apps {

namespace {

// What a handler may touch: a signal has no other argument.
std::atomic<int> wished_signal{0};
std::atomic<std::int64_t> wished_at{0};  // nanoseconds of the monotonic clock
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t nanoseconds_per_second = 1'000'000'000;
constexpr std::int64_t same_wish = nanoseconds_per_second;

void note(int signal) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t time = now.tv_sec * nanoseconds_per_second + now.tv_nsec;
    int none = 0;
    if (wished_signal.compare_exchange_strong(none, signal)) {
        wished_at = time;
        return;
    }
    const std::int64_t first = wished_at;
    if (first == 0 || time - first < same_wish) return;
    // Delivered when this handler has returned.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

}  // namespace

TerminationWatch::TerminationWatch() : before_{}, mask_before_{} {
    wished_signal = 0;
    wished_at = 0;
    struct sigaction action{};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < watched.size(); ++i) {
        ::sigaction(watched[i], nullptr, &before_[i]);
        // What the starter ignores stays ignored: nohup, and jobs in the background of a script.
        if (before_[i].sa_handler != SIG_IGN) ::sigaction(watched[i], &action, nullptr);
    }
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : watched) sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, &mask_before_);
    receiver_ = std::jthread([signals](const std::stop_token& end) {
        ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        ended.wait(lock, end, [] { return false; });
    });
}

TerminationWatch::~TerminationWatch() {
    receiver_ = {};  // ends, and is waited for
    for (std::size_t i = 0; i < watched.size(); ++i) ::sigaction(watched[i], &before_[i], nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> TerminationWatch::wish() {
    const int signal = wished_signal;
    return signal == 0 ? std::nullopt : std::optional<int>(signal);
}

std::string signal_name(int signal) {
    const char* const name = ::sigabbrev_np(signal);
    return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace apps
