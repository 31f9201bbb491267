#include "schedule/pass/rank/gradient_reductions.h"

#include "core/index/integers.h"

namespace schedule {

GradientReductions::GradientReductions(const Program& program, const RankBuckets& buckets,
                                       const RankProgram& rank, InstructionList& list,
                                       const Frontier& frontier)
    : program_(program),
      plan_(program.plan),
      buckets_(buckets),
      rank_(rank),
      list_(list),
      frontier_(frontier),
      full_gradient_(buckets.buckets.size(), no_buffer) {}

bool GradientReductions::is_reduced_at_the_end(std::int32_t bucket) const {
    const ParameterBucket& b = buckets_.buckets[bucket];
    return !b.tied_ranks.empty() || b.is_partial_over_tensor || buckets_.uses[bucket].size() > 1;
}

// While the whole gradients of one step are on their way, those of the next are computed; a further step
// waits until the first have arrived, so that a slow network holds up the backward pass instead of filling
// the memory (FSDP2 waits for the reduce-scatter before, as DeepSpeed's overlap_comm does before it reuses a
// bucket).
void GradientReductions::begin_gradients(const std::vector<std::int32_t>& buckets) {
    for (const std::int32_t bucket : buckets) {
        const ParameterBucket& b = buckets_.buckets[bucket];
        std::uint32_t& buffer = full_gradient_[bucket];
        buffer =
            list_.buffer(MemoryKind::gradients, b.padded_elements * core::size_of(plan_.precision.gradients));
        list_.take(buffer);
    }
    list_.wait_for(scatter_before_);
    scatter_before_ = last_scatter_;
}

bool GradientReductions::reduce(std::int32_t bucket, std::uint32_t after, bool completes) {
    const ParameterBucket& b = buckets_.buckets[bucket];
    const BucketGroups groups = groups_of(plan_.layout, b);
    if (groups.size == 1) return false;
    if (b.pieces == 1) {
        last_on_data_ = collective(bucket, CollectiveKind::all_reduce, groups.members, false, after);
        return true;
    }
    std::uint32_t& full = full_gradient_[bucket];
    list_.give_back(full);
    full = no_buffer;
    last_on_data_ = last_scatter_ =
        collective(bucket, CollectiveKind::reduce_scatter, groups.shard, false, after);
    // Hybrid sharding adds the pieces up over the replicas once per step (MiCS, arXiv 2205.00119,
    // section 3.4: two-hop gradient synchronisation).
    const bool sums_replicas =
        !reduces_every_micro_batch(bucket) || (completes && sums_replicas_beside_backward(bucket));
    if (sums_replicas && b.pieces < groups.size)
        last_on_data_ = collective(bucket, CollectiveKind::all_reduce, groups.replica, true, last_on_data_);
    return true;
}

// Tied parameters come last: their gradients on other ranks may be ready much later.
void GradientReductions::finish() {
    const std::uint32_t ready = frontier_.last_step;
    for (const bool tied : {false, true})
        for (const std::int32_t b : core::indices(buckets_.buckets)) {
            const ParameterBucket& bucket = buckets_.buckets[b];
            if (bucket.tied_ranks.empty() == tied) continue;
            const bool on_shard = reduces_every_micro_batch(b);
            const BucketGroups groups = groups_of(plan_.layout, bucket);
            std::uint32_t after = ready;
            if (on_shard) {
                after = last_on_data_ == no_instruction ? ready : last_on_data_;
                if (bucket.pieces < groups.size && !sums_replicas_beside_backward(b))
                    after = last_on_data_ =
                        collective(b, CollectiveKind::all_reduce, groups.replica, true, after);
            }
            if (bucket.is_partial_over_tensor)
                after = last_on_tensor_ =
                    collective(b, CollectiveKind::all_reduce, GroupKind::tensor, on_shard, after);
            if (tied)
                after = last_on_data_ =
                    collective(b, CollectiveKind::all_reduce, GroupKind::tied_stages, on_shard, after);
            if (!on_shard && (is_reduced_at_the_end(b) || !plan_.overlaps_gradient_reduction))
                reduce(b, after, true);
        }
}

void GradientReductions::wait_for_all() const {
    for (const std::uint32_t index : {last_on_data_, last_on_tensor_}) list_.wait_for(index);
}

}  // namespace schedule
