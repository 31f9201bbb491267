// How the gradients of a rank's buckets become sums over its data-parallel, tensor and tied groups: beside
// the backward passes where they may, else at the end of the step.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pass/buckets.h"
#include "schedule/pass/rank/collectives.h"
#include "schedule/pass/rank/frontier.h"

namespace schedule {

class GradientReductions {
public:
    // Everything given outlives it.
    GradientReductions(const Program& program, const RankBuckets& buckets, const RankProgram& rank,
                       InstructionList& list, const Frontier& frontier);

    bool reduces_every_micro_batch(std::int32_t bucket) const {
        return plan_.sharding >= Sharding::gradients && buckets_.buckets[bucket].pieces > 1;
    }
    bool has_gradient_of_the_pass(std::int32_t bucket) const {
        return reduces_every_micro_batch(bucket) && buckets_.uses[bucket].size() == 1;
    }
    bool is_reduced_at_the_end(std::int32_t bucket) const;

    // Whole gradients that are scattered as soon as they are complete: their buffers.
    void begin_gradients(const std::vector<std::int32_t>& buckets);
    // Data-parallel reduction of a bucket's gradient after instruction `after`, and the collectives over its
    // shards; false when there is none to do. `completes`: nothing adds to the gradient after this pass.
    bool reduce(std::int32_t bucket, std::uint32_t after, bool completes);
    // Reductions that could not run beside the backward passes.
    void finish();

    std::uint32_t last_on_data() const { return last_on_data_; }
    // The next instruction waits for every reduction so far.
    void wait_for_all() const;

private:
    std::uint32_t collective(std::int32_t bucket, CollectiveKind kind, GroupKind group, bool on_shard,
                             std::uint32_t after) {
        return append_collective(list_, plan_, rank_, bucket,
                                 {kind, group, PayloadKind::parameter_gradient, on_shard}, after);
    }
    // Hybrid sharding sums over the replicas once per step: beside the last backward pass where reductions
    // may run there (FSDP's HYBRID_SHARD), else after it.
    bool sums_replicas_beside_backward(std::int32_t bucket) const {
        return plan_.overlaps_gradient_reduction && !is_reduced_at_the_end(bucket) &&
               program_.directions == 1 && program_.micro_batches_per_update == 0;
    }

    const Program& program_;
    const Plan& plan_;
    const RankBuckets& buckets_;
    const RankProgram& rank_;
    InstructionList& list_;
    const Frontier& frontier_;
    std::vector<std::uint32_t> full_gradient_;  // by bucket: buffer of the pass
    // Reduce-scatters: the last one, and the last one when whole gradients last began.
    std::uint32_t last_scatter_ = no_instruction, scatter_before_ = no_instruction;
    std::uint32_t last_on_data_ = no_instruction, last_on_tensor_ = no_instruction;
};

}  // namespace schedule
