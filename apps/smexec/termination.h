// The wish of a launcher or a person that this process ends: SIGTERM, SIGINT, SIGUSR1.
#pragma once

#include <signal.h>

#include <array>
#include <optional>
#include <string>

namespace apps {

// While it lives the first such signal is noted instead of ending the process, so that training can end with
// a checkpoint. A second one ends the process at once; those within a second of the first are taken for the
// same wish, because launchers forward what reached the whole group already. One at a time in a process.
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
};

// "SIGTERM"
std::string signal_name(int signal);

}  // namespace apps
