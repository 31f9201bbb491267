// The operator at which a forward pass runs out of memory. A Program allocates all that a forward pass saves
// with the pass's first instruction, a device operator by operator.
#pragma once

#include <cstdint>
#include <optional>

#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace sim {

struct OverflowOperator {
    std::uint32_t instruction = 0;  // of the same pass
    std::int32_t op = 0;
    core::Bytes taken;  // allocated by the pass up to and with the operator
    core::Bytes asked;  // requested by the operator
};

// `first` is the instruction that allocates the buffers of a forward pass for which only `room` is left.
// Nothing when it is no forward pass, or when the saved tensors alone would fit.
std::optional<OverflowOperator> place_in_forward_pass(const schedule::Program& program,
                                                      const model::ModelGraph& graph,
                                                      const schedule::RankProgram& list, std::uint32_t first,
                                                      core::Bytes room);

}  // namespace sim
