#include "schedule/pass/instruction_list.h"

#include "core/index/integers.h"

#include <algorithm>

namespace schedule {

std::uint32_t InstructionList::append(Instruction instruction) {
    std::sort(after_.begin(), after_.end());
    after_.erase(std::unique(after_.begin(), after_.end()), after_.end());
    instruction.after_begin = core::narrow<std::uint32_t>(program_.after_pool.size());
    instruction.after_count = core::narrow<std::uint32_t>(after_.size());
    program_.after_pool.insert(program_.after_pool.end(), after_.begin(), after_.end());
    instruction.allocate_begin = core::narrow<std::uint32_t>(program_.buffer_pool.size());
    instruction.allocate_count = core::narrow<std::uint32_t>(taken_.size());
    program_.buffer_pool.insert(program_.buffer_pool.end(), taken_.begin(), taken_.end());
    instruction.free_begin = core::narrow<std::uint32_t>(program_.buffer_pool.size());
    instruction.free_count = core::narrow<std::uint32_t>(given_back_.size());
    program_.buffer_pool.insert(program_.buffer_pool.end(), given_back_.begin(), given_back_.end());
    after_.clear();
    taken_.clear();
    given_back_.clear();
    program_.instructions.push_back(instruction);
    return core::narrow<std::uint32_t>(program_.instructions.size() - 1);
}

}  // namespace schedule
