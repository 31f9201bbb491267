#include "exec/cpu/cores.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace exec::cpu {

int available_cores() {
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void stay_on_core(int thread, int threads) {
    if (threads < 2) return;  // alone it meets no sibling, and several processes that each are alone would all choose the first core
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < threads) return;
    int position = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (!CPU_ISSET(core, &allowed) || position++ != thread) continue;
        cpu_set_t mine;
        CPU_ZERO(&mine);
        CPU_SET(core, &mine);
        pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);  // a wish, not a need
        return;
    }
#else
    static_cast<void>(thread);
    static_cast<void>(threads);
#endif
}

}  // namespace exec::cpu
