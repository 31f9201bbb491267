// Proof before play: every receive has its send, nothing can deadlock, buffers balance, every micro-batch is finished. Runs before either interpreter.
#pragma once

#include <string>
#include <vector>

#include "schedule/program.h"
#include "schedule/schedule.h"

namespace schedule {

struct Violation {
    std::string rule;     // "completeness", "placement", "local order", "progress", "transfers", "memory", "buffers", ...
    std::string message;  // what is wrong, with rank, stage, micro-batch
    int rank = -1;        // pipeline rank (schedule) or class (program)
    int position = -1;    // in its list
};

std::vector<Violation> verify(const Schedule& schedule);
std::vector<Violation> verify(const Program& program);

// The rank grid as text with the offending cell marked; at most `width` columns around it.
std::string draw(const Schedule& schedule, const Violation* mark = nullptr, int width = 40);

}  // namespace schedule
