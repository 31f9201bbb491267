// Where the list of a rank has got to: what the next step follows.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pass/instruction_list.h"

namespace schedule {

struct Frontier {
    std::uint32_t last_step = no_instruction;  // the latest compute or tensor-parallel step
    std::vector<std::uint32_t> pending;        // what the next one waits for, beside its stream
};

}  // namespace schedule
