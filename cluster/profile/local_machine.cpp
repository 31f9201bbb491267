#include "cluster/profile/local_machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

namespace cluster {

namespace {

// First word of a small file of the kernel; empty when there is none.
std::string first_words(const std::string& path, int words) {
    std::ifstream file(path);
    std::string text, word;
    for (int i = 0; i < words && file >> word; ++i) text += (i > 0 ? " " : "") + word;
    return text;
}

int cores_allowed() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    // cgroup v2: "max 100000" or "QUOTA PERIOD"; v1: two files, quota -1 when there is none.
    double quota = 0, period = 0;
    std::string limit = first_words("/sys/fs/cgroup/cpu.max", 2);
    if (!limit.empty()) {
        char* rest = nullptr;
        quota = std::strtod(limit.c_str(), &rest);
        period = rest ? std::strtod(rest, nullptr) : 0;
    } else {
        quota = std::strtod(first_words("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 1).c_str(), nullptr);
        period = std::strtod(first_words("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 1).c_str(), nullptr);
    }
    if (quota > 0 && period > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
    return std::max(1, cores);
}

core::Bytes memory_allowed() {
    double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
        double limit = std::strtod(first_words(path, 1).c_str(), nullptr);  // "max" reads as zero
        if (limit > 0) memory = std::min(memory, limit);
    }
    return core::Bytes(memory);
}

}  // namespace

LocalMachine probe_local_machine() { return {cores_allowed(), memory_allowed()}; }

std::string local_profile_path() {
    if (const char* path = std::getenv("SMSIM_LOCAL_PROFILE"); path && *path) return path;
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
        return std::string(cache) + "/smsim/local-cpu.toml";
    if (const char* home = std::getenv("HOME"); home && *home)
        return std::string(home) + "/.cache/smsim/local-cpu.toml";
    return {};
}

}  // namespace cluster
