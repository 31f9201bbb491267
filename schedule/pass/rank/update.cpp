#include "schedule/pass/rank/update.h"

#include <vector>

#include "core/index/integers.h"

namespace schedule {

RankUpdate::RankUpdate(const Program& program, const RankProgram& rank, const GradientReductions& reductions,
                       InstructionList& list, Frontier& frontier)
    : program_(program),
      plan_(program.plan),
      rank_(rank),
      reductions_(reductions),
      list_(list),
      frontier_(frontier) {}

// Over the ends of both directions' pipelines, where there are two, and over the replicas.
void RankUpdate::reduce_loss(std::uint32_t ready) {
    if (ready == no_instruction) return;
    std::uint32_t after = ready;
    for (const GroupKind group : {GroupKind::tied_stages, GroupKind::data}) {
        if (group == GroupKind::tied_stages ? program_.directions == 1 || plan_.layout.pipeline == 1
                                            : plan_.layout.data == 1)
            continue;
        after = append_sum(list_, rank_, group, PayloadKind::loss, core::Bytes(4), after);
    }
}

void RankUpdate::wait_for_gradients() {
    list_.wait_for(frontier_.last_step);
    reductions_.wait_for_all();
    for (const std::uint32_t index : frontier_.pending) list_.wait_for(index);
}

// Sums of squares of what each rank counts, added up over every group that divides gradients.
void RankUpdate::take_gradient_norm() {
    Instruction norm;
    norm.kind = InstructionKind::gradient_norm;
    wait_for_gradients();
    frontier_.last_step = list_.append(norm);
    const auto add_up = [&](GroupKind group) {
        frontier_.last_step =
            append_sum(list_, rank_, group, PayloadKind::gradient_norm, core::Bytes(4), frontier_.last_step);
    };
    if (plan_.divides_gradients_by() > 1)
        add_up(plan_.divides_gradients_by() == plan_.layout.expert ? GroupKind::expert : GroupKind::shard);
    if (plan_.layout.tensor > 1) add_up(GroupKind::tensor);
    if (plan_.layout.pipeline > 1) add_up(GroupKind::pipeline);
}

// LAMB: the sums of this rank's part of a bucket, added up over every group that divides it. Returns the
// instruction that the step of the bucket waits for.
std::uint32_t RankUpdate::take_update_norms(std::int32_t index, std::uint32_t sums) {
    const ParameterBucket& bucket = rank_.buckets[index];
    Instruction norm;
    norm.kind = InstructionKind::update_norm;
    norm.bucket = index;
    norm.stage = bucket.stage;
    list_.take(sums);
    std::uint32_t last = list_.append(norm);
    for (const GroupKind group : dividing_groups(plan_, bucket))
        last =
            append_sum(list_, rank_, group, PayloadKind::update_norm, update_norm_bytes(bucket), last, index);
    return last;
}

void RankUpdate::update() {
    const std::int32_t count = core::count_of(rank_.buckets);
    if (count == 0) return;
    // optimizer.step() begins when every reduction has ended; what follows is in order on the stream.
    wait_for_gradients();
    frontier_.pending.clear();
    const bool takes_norms = needs_update_norms(plan_.optimizer);
    std::vector<std::uint32_t> sums(count, no_buffer), known(count, no_instruction);
    for (std::int32_t b = 0; b < count && takes_norms; ++b) {
        sums[b] = list_.buffer(MemoryKind::workspace, update_norm_bytes(rank_.buckets[b]));
        // The sums of one bucket are on their way while those of the next are taken. What nothing divides is
        // updated at once, below.
        if (!dividing_groups(plan_, rank_.buckets[b]).empty()) known[b] = take_update_norms(b, sums[b]);
    }
    for (std::int32_t b = 0; b < count; ++b) {
        const ParameterBucket& bucket = rank_.buckets[b];
        Instruction step;
        step.kind = InstructionKind::optimizer_step;
        step.bucket = b;
        step.stage = bucket.stage;
        if (takes_norms) {
            if (known[b] == no_instruction) take_update_norms(b, sums[b]);
            list_.wait_for(known[b]);
            list_.give_back(sums[b]);
        }
        const std::uint32_t updated = list_.append(step);
        if (bucket.pieces > 1 && plan_.sharding < Sharding::parameters)
            append_collective(list_, plan_, rank_, b,
                              {CollectiveKind::all_gather, groups_of(plan_.layout, bucket).shard,
                               PayloadKind::parameter, false},
                              updated);
    }
}

}  // namespace schedule
