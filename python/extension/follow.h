// Long work for Python: the interpreter stays free, progress is told, Ctrl-C ends it with its best so far.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

#include "api/reply.h"

namespace python {

// Runs `work` on a thread of its own. Meanwhile the calling thread gives the interpreter away, looks for
// signals and calls `progress` (None, or a function of one dict: done, all, best, lower_bound, seconds),
// where one that returns False ends the work too. What a signal's handler or the function raises ends the
// work and is raised once it is over; a KeyboardInterrupt is not where the work has an answer: true is
// returned then.
bool follow(nanobind::object progress, const std::function<void(const api::Watch&)>& work);

}  // namespace python
