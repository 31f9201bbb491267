// The end of a rank's step: the loss over all ranks, the norm of the gradients, the update of the parameters.
#pragma once

#include <cstdint>

#include "schedule/pass/rank/frontier.h"
#include "schedule/pass/rank/gradient_reductions.h"

namespace schedule {

class RankUpdate {
public:
    // Everything given outlives it.
    RankUpdate(const Program& program, const RankProgram& rank, const GradientReductions& reductions,
               InstructionList& list, Frontier& frontier);

    // `ready`: the instruction that made it; `no_instruction` on ranks without the last stage.
    void reduce_loss(std::uint32_t ready);
    void take_gradient_norm();
    void update();

private:
    void wait_for_gradients();
    std::uint32_t take_update_norms(std::int32_t bucket, std::uint32_t sums);

    const Program& program_;
    const Plan& plan_;
    const RankProgram& rank_;
    const GradientReductions& reductions_;
    InstructionList& list_;
    Frontier& frontier_;
};

}  // namespace schedule
