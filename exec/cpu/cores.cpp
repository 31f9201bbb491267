#include "exec/cpu/cores.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace exec::cpu {

#if defined(__linux__)

struct StayOnCore::Cores {
    cpu_set_t set;
};

StayOnCore::StayOnCore(int thread, int threads) {
    // A single thread needs no core of its own, and several processes of one thread each would all choose the
    // first core.
    if (threads < 2) return;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < threads) return;
    int position = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (!CPU_ISSET(core, &allowed) || position++ != thread) continue;
        cpu_set_t mine;
        CPU_ZERO(&mine);
        CPU_SET(core, &mine);
        if (pthread_setaffinity_np(pthread_self(), sizeof mine, &mine) == 0)
            before_ = std::make_unique<const Cores>(Cores{allowed});  // failure only costs speed
        return;
    }
}

StayOnCore::~StayOnCore() {
    if (before_) pthread_setaffinity_np(pthread_self(), sizeof before_->set, &before_->set);
}

int available_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#else

struct StayOnCore::Cores {};

StayOnCore::StayOnCore(int, int) {}
StayOnCore::~StayOnCore() = default;

int available_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

#endif

}  // namespace exec::cpu
