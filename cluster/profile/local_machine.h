// Facts that the operating system gives about this machine, for the local-cpu profile.
#pragma once

#include <string>

#include "core/units.h"

namespace cluster {

struct LocalMachine {
    int cores =
        1;  // this process may run on (scheduler affinity, then the cgroup's processor quota rounded up)
    core::Bytes host_memory;  // physical, or the cgroup's limit when that is smaller
};

LocalMachine probe_local_machine();
// Where `smexec profile` leaves its figures: $SMSIM_LOCAL_PROFILE, else ~/.cache/smsim/local-cpu.toml
// ($XDG_CACHE_HOME when set). Empty without a home.
std::string local_profile_path();

}  // namespace cluster
