#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

// Where two have something at the same place it comes in this order: what is held, what surrounds a unit,
// what stands between operators, what ends a step.
constexpr MakeLoweringPass all[] = {
    state,                // parameters, gradients and optimizer state, held from start to end
    sharding,             // gathers of sharded parameters, a unit ahead
    offload,              // copies of saved tensors out and back
    context_parallelism,  // keys and values of a replica's other tokens
    shared_heads,         // keys and values that several tensor-parallel ranks read
    expert_parallelism,   // routed tokens to their experts' ranks and back
    recomputation,        // units, or operators, once more before their backward
    tensor_parallelism,   // the collectives of parallel regions
    parts_of_sequences,   // gradients of earlier parts' keys and values
    gradient_reduction,   // over replicas, shards and tied stages
    weight_versions,      // parameters that an asynchronous update replaces too early
    loss,                 // its mean over all ranks
    gradient_clipping,    // the norm of all gradients
    parameter_update,     // gradients zero, optimizer steps
};

}  // namespace

std::vector<std::unique_ptr<LoweringPass>> lowering_passes(RankDraft& draft) {
    std::vector<std::unique_ptr<LoweringPass>> passes;
    if (!draft.graph) return passes;  // compute and transfers only
    for (const MakeLoweringPass make : all)
        if (auto pass = make(draft)) passes.push_back(std::move(pass));
    return passes;
}

}  // namespace schedule
