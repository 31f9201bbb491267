// The wish of a launcher or a person that this process ends: SIGTERM, SIGINT, SIGUSR1.
#pragma once

#include <signal.h>

#include <array>
#include <optional>
#include <string>
#include <thread>

namespace apps {

// While it lives the first such signal is noted instead of ending the process, so that training can end with
// a checkpoint. A second one ends the process at once; those within a second of the first are taken for the
// same wish, because launchers forward what reached the whole group already. One at a time in a process.
//
// The handler runs in a thread of its own: the thread that makes the watch, and those that it starts later,
// have the signals blocked as long as it lives. A handler in the middle of a kernel left 3 of 8 ranks with a
// damaged heap under gVisor with AVX-512, though it touches two numbers alone.
class TerminationWatch {
public:
    TerminationWatch();
    ~TerminationWatch();
    TerminationWatch(const TerminationWatch&) = delete;
    TerminationWatch& operator=(const TerminationWatch&) = delete;

    // The number of the signal that came.
    static std::optional<int> wish();

private:
    static constexpr std::array<int, 3> watched = {SIGTERM, SIGINT, SIGUSR1};
    std::array<struct sigaction, watched.size()> before_;
    sigset_t mask_before_;
    std::jthread receiver_;
};

// "SIGTERM"
std::string signal_name(int signal);

}  // namespace apps
