// Around the passes of a rank: what it holds from start to end, how gradients are reduced, and the update.
#include <algorithm>

#include "core/index/integers.h"
#include "schedule/pass/rank_lowering.h"

namespace schedule {

bool RankLowering::is_reduced_at_the_end(std::size_t bucket) const {
    const ParameterBucket& b = buckets_.buckets[bucket];
    return !b.tied_ranks.empty() || b.is_partial_over_tensor || buckets_.uses[bucket].size() > 1;
}

std::uint32_t RankLowering::bucket_collective(std::int32_t bucket, CollectiveKind kind, GroupKind group,
                                              PayloadKind payload, bool on_shard, std::uint32_t after) {
    const ParameterBucket& b = result_.buckets[bucket];
    const core::Bytes size = core::size_of(payload == PayloadKind::parameter ? plan_.precision.parameters
                                                                             : plan_.precision.gradients);
    Instruction instruction;
    instruction.kind = InstructionKind::collective;
    instruction.stream = group == GroupKind::tensor ? Stream::tensor : Stream::data;
    instruction.collective = kind;
    instruction.group = group;
    instruction.payload = payload;
    instruction.bucket = bucket;
    instruction.on_shard = on_shard;
    instruction.stage = b.stage;
    instruction.bytes = (on_shard ? b.padded_elements / b.pieces : b.padded_elements) * size;
    list_.wait_for(after);
    return list_.append(instruction);
}

bool RankLowering::reduce(std::int32_t bucket, std::uint32_t after) {
    const ParameterBucket& b = result_.buckets[bucket];
    const BucketGroups groups = groups_of(plan_.layout, b);
    if (groups.size == 1) return false;
    if (b.pieces == 1) {
        last_on_data_ = bucket_collective(bucket, CollectiveKind::all_reduce, groups.members,
                                          PayloadKind::parameter_gradient, false, after);
        return true;
    }
    std::uint32_t& full = full_gradient_[bucket];
    list_.give_back(full);
    full = no_buffer;
    last_on_data_ = last_scatter_ = bucket_collective(bucket, CollectiveKind::reduce_scatter, groups.shard,
                                                      PayloadKind::parameter_gradient, false, after);
    // Hybrid sharding adds the pieces up over the replicas once per step (MiCS, arXiv 2205.00119,
    // section 3.4: two-hop gradient synchronisation).
    const std::int32_t index = bucket;
    const bool sums_replicas = !reduces_every_micro_batch(index) ||
                               (completes_gradients_now_ && sums_replicas_beside_backward(index));
    if (sums_replicas && b.pieces < groups.size)
        last_on_data_ = bucket_collective(bucket, CollectiveKind::all_reduce, groups.replica,
                                          PayloadKind::parameter_gradient, true, last_on_data_);
    return true;
}

// Reductions that could not run beside the backward passes. Tied parameters come last: their gradients on
// other ranks may be ready much later.
void RankLowering::finish_reductions() {
    const std::uint32_t ready = last_step_;
    const auto sum_partial = [&](std::int32_t bucket, bool on_shard, std::uint32_t after) {
        return last_on_tensor_ = bucket_collective(bucket, CollectiveKind::all_reduce, GroupKind::tensor,
                                                   PayloadKind::parameter_gradient, on_shard, after);
    };
    for (const bool tied : {false, true})
        for (const std::int32_t b : core::indices(buckets_.buckets)) {
            const ParameterBucket& bucket = buckets_.buckets[b];
            if (bucket.tied_ranks.empty() == tied) continue;
            const auto index = b;
            const bool on_shard = reduces_every_micro_batch(b);
            const BucketGroups groups = groups_of(plan_.layout, bucket);
            std::uint32_t after = ready;
            if (on_shard) {
                after = last_on_data_ == no_instruction ? ready : last_on_data_;
                if (bucket.pieces < groups.size && !sums_replicas_beside_backward(b))
                    after = last_on_data_ =
                        bucket_collective(index, CollectiveKind::all_reduce, groups.replica,
                                          PayloadKind::parameter_gradient, true, after);
            }
            if (bucket.is_partial_over_tensor) after = sum_partial(index, on_shard, after);
            if (tied)
                after = last_on_data_ =
                    bucket_collective(index, CollectiveKind::all_reduce, GroupKind::tied_stages,
                                      PayloadKind::parameter_gradient, on_shard, after);
            if (!on_shard && (is_reduced_at_the_end(b) || !plan_.overlaps_gradient_reduction))
                reduce(index, after);
        }
}

std::uint32_t RankLowering::sum_scalars(GroupKind group, PayloadKind payload, core::Bytes bytes,
                                        std::uint32_t after, core::OptionalIndex bucket) {
    Instruction sum;
    sum.kind = InstructionKind::collective;
    sum.stream = group == GroupKind::tensor ? Stream::tensor : Stream::data;
    sum.collective = CollectiveKind::all_reduce;
    sum.group = group;
    sum.payload = payload;
    sum.bytes = bytes;
    sum.bucket = bucket;
    if (bucket) sum.stage = result_.buckets[*bucket].stage;
    list_.wait_for(after);
    return list_.append(sum);
}

// Over the ends of both directions' pipelines, where there are two, and over the replicas.
void RankLowering::reduce_loss() {
    if (loss_ready_ == no_instruction) return;
    std::uint32_t after = loss_ready_;
    for (const GroupKind group : {GroupKind::tied_stages, GroupKind::data}) {
        if (group == GroupKind::tied_stages ? program_.directions == 1 || plan_.layout.pipeline == 1
                                            : plan_.layout.data == 1)
            continue;
        after = sum_scalars(group, PayloadKind::loss, core::Bytes(4), after);
    }
}

// Sums of squares of what each rank counts, added up over every group that divides gradients.
void RankLowering::take_gradient_norm() {
    Instruction norm;
    norm.kind = InstructionKind::gradient_norm;
    for (const std::uint32_t index : {last_step_, last_on_data_, last_on_tensor_}) list_.wait_for(index);
    for (const std::uint32_t index : pending_) list_.wait_for(index);
    last_step_ = list_.append(norm);
    const auto add_up = [&](GroupKind group) {
        last_step_ = sum_scalars(group, PayloadKind::gradient_norm, core::Bytes(4), last_step_);
    };
    if (plan_.divides_gradients_by() > 1)
        add_up(plan_.divides_gradients_by() == plan_.layout.expert ? GroupKind::expert : GroupKind::shard);
    if (plan_.layout.tensor > 1) add_up(GroupKind::tensor);
    if (plan_.layout.pipeline > 1) add_up(GroupKind::pipeline);
}

void RankLowering::update_between(std::int32_t index) {
    finish_reductions();
    // The newest micro-batch in flight began with the parameters that this update replaces: they stay until
    // its backward, the last to read them.
    const std::int32_t newest = forwards_done_ - 1;
    std::vector<std::uint32_t> replaced;
    if (forwards_done_ > backwards_done_ && version_of_[newest] == updates_done_)
        for (const ParameterBucket& bucket : result_.buckets)
            replaced.push_back(list_.buffer(
                MemoryKind::parameters, bucket.padded_elements * core::size_of(plan_.precision.parameters)));
    for (const std::uint32_t buffer : replaced) takes_.push_back(buffer);
    if (!replaced.empty()) replaced_parameters_[newest] = std::move(replaced);
    take_all();
    const std::uint32_t first = list_.size();
    update();
    for (std::uint32_t i = first; i < list_.size(); ++i)
        if (list_[i].kind == InstructionKind::optimizer_step || list_[i].kind == InstructionKind::update_norm)
            result_.instructions[i].micro_batch = index;
    ++updates_done_;
    if (updates_done_ == program_.updates()) return;
    Instruction zero;
    zero.kind = InstructionKind::zero_gradients;
    last_step_ = list_.append(zero);
}

// LAMB: the sums of this rank's part of a bucket, added up over every group that divides it. Returns the
// instruction that the step of the bucket waits for.
std::uint32_t RankLowering::take_update_norms(std::int32_t index, std::uint32_t sums) {
    const ParameterBucket& bucket = result_.buckets[index];
    Instruction norm;
    norm.kind = InstructionKind::update_norm;
    norm.bucket = index;
    norm.stage = bucket.stage;
    list_.take(sums);
    std::uint32_t last = list_.append(norm);
    for (const GroupKind group : dividing_groups(plan_, bucket))
        last = sum_scalars(group, PayloadKind::update_norm, update_norm_bytes(bucket), last, index);
    return last;
}

void RankLowering::update() {
    const std::int32_t count = core::count_of(result_.buckets);
    if (count == 0) return;
    // optimizer.step() begins when every reduction has ended; what follows is in order on the stream.
    for (const std::uint32_t index : {last_step_, last_on_data_, last_on_tensor_}) list_.wait_for(index);
    for (const std::uint32_t index : pending_) list_.wait_for(index);
    pending_.clear();
    const bool takes_norms = needs_update_norms(plan_.optimizer);
    std::vector<std::uint32_t> sums(count, no_buffer), known(count, no_instruction);
    for (std::int32_t b = 0; b < count && takes_norms; ++b) {
        sums[b] = list_.buffer(MemoryKind::workspace, update_norm_bytes(result_.buckets[b]));
        // The sums of one bucket are on their way while those of the next are taken. What nothing divides is
        // updated at once, below.
        if (!dividing_groups(plan_, result_.buckets[b]).empty()) known[b] = take_update_norms(b, sums[b]);
    }
    for (std::int32_t b = 0; b < count; ++b) {
        const ParameterBucket& bucket = result_.buckets[b];
        Instruction step;
        step.kind = InstructionKind::optimizer_step;
        step.bucket = b;
        step.stage = bucket.stage;
        if (takes_norms) {
            if (known[b] == no_instruction) take_update_norms(*step.bucket, sums[b]);
            list_.wait_for(known[b]);
            list_.give_back(sums[b]);
        }
        const std::uint32_t updated = list_.append(step);
        if (bucket.pieces > 1 && plan_.sharding < Sharding::parameters)
            bucket_collective(*step.bucket, CollectiveKind::all_gather, groups_of(plan_.layout, bucket).shard,
                              PayloadKind::parameter, false, updated);
    }
}

void RankLowering::add_persistent() {
    double parameters = 0, gradients = 0, states = 0;
    for (std::size_t b = 0; b < result_.buckets.size(); ++b) {
        const double whole = result_.buckets[b].padded_elements;
        const double pieces = result_.buckets[b].pieces;
        const auto share = [&](Sharding what) { return plan_.sharding >= what ? whole / pieces : whole; };
        parameters += share(Sharding::parameters);
        gradients += share(Sharding::gradients);
        // A gradient that several stages of the rank add to stays whole between their passes.
        if (reduces_every_micro_batch(b) && !has_gradient_of_the_pass(b)) gradients += whole;
        states += share(Sharding::optimizer);
    }
    list_.persistent(MemoryKind::parameters, parameters * core::size_of(plan_.precision.parameters));
    if (!trains_) return;
    list_.persistent(MemoryKind::gradients, gradients * core::size_of(plan_.precision.gradients));
    if (!options_.has_optimizer) return;
    list_.persistent(MemoryKind::optimizer,
                     states * (state_bytes_per_parameter(plan_.optimizer) +
                               core::Bytes(plan_.precision.has_master_parameters ? 4 : 0)));
}

}  // namespace schedule
