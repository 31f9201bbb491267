// Where sequences pass in parts (model/segment.h), attention of the last part, which goes backward first,
// leaves gradients for the keys and values of the parts before it: their buffers in one stage.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pass/instruction_list.h"
#include "schedule/plan/memory.h"
#include "schedule/program/program.h"

namespace schedule {

class KeyValueGradients {
public:
    explicit KeyValueGradients(const Program& program);

    // Forward of a part: where the gradients of those before it will reuse memory of its own activations,
    // that memory is counted for them from now on. Buffers to take, appended.
    void begin_forward(InstructionList& list, std::int32_t micro_batch, const ActivationFootprint& footprint,
                       std::vector<std::uint32_t>& takes);
    // Backward of a part: the last one makes the gradients of all before it.
    void begin_backward(InstructionList& list, std::int32_t micro_batch, const ActivationFootprint& footprint,
                        std::vector<std::uint32_t>& takes);

    // What a part's own backward is the last to need, each `no_buffer` where there is none.
    std::uint32_t of(std::int32_t micro_batch) const { return gradient_[micro_batch]; }
    std::uint32_t reused_for(std::int32_t micro_batch) const { return reused_[micro_batch]; }

private:
    const Program* program_;
    std::vector<std::uint32_t> gradient_, reused_;  // by micro-batch of the Program
};

}  // namespace schedule
