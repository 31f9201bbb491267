// The update of the parameters: gradients zero before, the optimizer's steps bucket by bucket after all
// reductions, LAMB's sums before them, and the gathers of what is updated in pieces. Where hosts update,
// gradients that are not there are copied before, and parameters back after unless they stay there.
#include <vector>

#include "core/index/integers.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

class ParameterUpdate : public LoweringPass {
public:
    using LoweringPass::LoweringPass;

    void begin_step() override { zero_gradients(); }

    void end(const Ending& ending) override {
        if (!ending.updates) return;
        update(ending.update);
        ++updates_;
        if (draft_.is_asynchronous() && updates_ < draft_.program.updates()) zero_gradients();
    }

private:
    void zero_gradients() {
        Instruction zero;
        zero.kind = InstructionKind::zero_gradients;
        draft_.frontier.last_step = draft_.list.append(zero);
    }

    // LAMB: the sums of this rank's part of a bucket, added up over every group that divides it. Returns the
    // instruction that the step of the bucket waits for.
    std::uint32_t take_update_norms(std::int32_t index, std::int32_t update, std::uint32_t sums) {
        const ParameterBucket& bucket = draft_.buckets.buckets[index];
        Instruction norm;
        norm.kind = InstructionKind::update_norm;
        norm.bucket = index;
        norm.stage = bucket.stage;
        norm.micro_batch = update;
        draft_.list.take(sums);
        std::uint32_t last = draft_.list.append(norm);
        for (const GroupKind group : dividing_groups(draft_.plan, bucket))
            last =
                append_sum(draft_, group, PayloadKind::update_norm, update_norm_bytes(bucket), last, index);
        return last;
    }

    void update(std::int32_t update) {
        const std::vector<ParameterBucket>& buckets = draft_.buckets.buckets;
        const std::int32_t count = core::count_of(buckets);
        if (count == 0) return;
        // optimizer.step() begins when every reduction has ended; what follows is in order on the stream.
        draft_.wait_for_gradients();
        // All gradients are on their way before the first values come back: copies are in order too.
        std::vector<std::uint32_t> sent(count, no_instruction);
        for (std::int32_t b = 0; b < count && draft_.plan.updates_on_hosts(); ++b)
            if (!buckets[b].sums_on_host) sent[b] = append_bucket_copy(draft_, b, false, no_instruction);
        // Of gradients that are there already the step waits for no copy.
        if (draft_.plan.keeps_parameters_on_hosts()) draft_.wait_for_gradients();
        draft_.frontier.pending.clear();
        const bool takes_norms = needs_update_norms(draft_.plan.optimizer);
        std::vector<std::uint32_t> sums(count, no_buffer), known(count, no_instruction);
        for (std::int32_t b = 0; b < count && takes_norms; ++b) {
            sums[b] = draft_.list.buffer(MemoryKind::workspace, update_norm_bytes(buckets[b]));
            // The sums of one bucket are on their way while those of the next are taken. What nothing divides
            // is updated at once, below.
            if (!dividing_groups(draft_.plan, buckets[b]).empty())
                known[b] = take_update_norms(b, update, sums[b]);
        }
        for (std::int32_t b = 0; b < count; ++b) {
            Instruction step;
            step.kind = InstructionKind::optimizer_step;
            step.bucket = b;
            step.stage = buckets[b].stage;
            step.micro_batch = update;
            if (takes_norms) {
                if (known[b] == no_instruction) take_update_norms(b, update, sums[b]);
                draft_.list.wait_for(known[b]);
                draft_.list.give_back(sums[b]);
            }
            draft_.list.wait_for(sent[b]);
            std::uint32_t updated = draft_.list.append(step);
            if (draft_.plan.updates_on_hosts() && !draft_.plan.keeps_parameters_on_hosts())
                updated = append_bucket_copy(draft_, b, true, updated);
            if (buckets[b].pieces > 1 && draft_.plan.sharding < Sharding::parameters)
                append_collective(
                    draft_, b,
                    {CollectiveKind::all_gather, groups_of(draft_.plan.layout, buckets[b]).shard,
                     PayloadKind::parameter, false},
                    updated);
        }
    }

    std::int32_t updates_ = 0;  // so far
};

}  // namespace

std::unique_ptr<LoweringPass> parameter_update(RankDraft& draft) {
    if (!draft.trains()) return nullptr;
    return std::make_unique<ParameterUpdate>(draft);
}

}  // namespace schedule
