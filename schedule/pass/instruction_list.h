// Appends instructions with their edges and buffers to a RankProgram: everything goes to the end of flat
// pools, nothing is allocated per instruction.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/index/integers.h"
#include "schedule/program/program.h"

namespace schedule {

inline constexpr std::uint32_t no_instruction = 0xFFFFFFFFu;
inline constexpr std::uint32_t no_buffer = 0xFFFFFFFFu;

class InstructionList {
public:
    explicit InstructionList(RankProgram& program) : program_(program) {}

    // A buffer to be taken and given back by instructions; `no_buffer` when it has no bytes.
    std::uint32_t buffer(MemoryKind kind, core::Bytes bytes) {
        if (bytes.value <= 0) return no_buffer;
        program_.buffers.push_back({kind, bytes, false});
        return core::narrow<std::uint32_t>(program_.buffers.size() - 1);
    }
    void persistent(MemoryKind kind, core::Bytes bytes) {
        if (bytes.value > 0) program_.buffers.push_back({kind, bytes, true});
    }

    // Dependencies of the next instruction appended, and the buffers that it takes and gives back.
    void wait_for(std::uint32_t instruction) {
        if (instruction != no_instruction) after_.push_back(instruction);
    }
    void take(std::uint32_t buffer) {
        if (buffer != no_buffer) taken_.push_back(buffer);
    }
    void give_back(std::uint32_t buffer) {
        if (buffer != no_buffer) given_back_.push_back(buffer);
    }
    std::uint32_t append(Instruction instruction);

    std::uint32_t size() const { return core::narrow<std::uint32_t>(program_.instructions.size()); }
    const Instruction& operator[](std::uint32_t index) const { return program_.instructions[index]; }

private:
    RankProgram& program_;
    std::vector<std::uint32_t> after_, taken_, given_back_;  // reused: no allocation after the first few
};

}  // namespace schedule
