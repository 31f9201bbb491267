// A page knows nothing of the machine's processors: musl declares these calls, and Emscripten has none of
// them.
#include <sched.h>

#include <cerrno>

extern "C" {

int sched_getaffinity(pid_t, size_t, cpu_set_t*) {
    errno = ENOSYS;
    return -1;
}

int __sched_cpucount(size_t, const cpu_set_t*) { return 1; }
}
