// How the gradients of a rank's buckets become sums over its data-parallel, tensor and tied groups: beside
// the backward passes where they may, else at the end of the step; and how they go to the hosts that keep
// them.
#include <algorithm>

#include "core/index/integers.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

class GradientReduction : public LoweringPass {
public:
    explicit GradientReduction(RankDraft& draft)
        : LoweringPass(draft), full_gradient_(draft.buckets.buckets.size(), no_buffer) {
        if (draft.plan.layout.data > 1 || draft.plan.keeps_parameters_on_hosts()) find_cuts();
    }

    void cut(OperatorCuts& cuts) override {
        if (cuts.is_forward() || cuts.phase() == ComputePhase::backward_input) return;
        for (const BucketCut& cut : cuts_) {
            if (cut.stage != cuts.recipe().stage) continue;
            const auto is_inside = [&](std::int32_t op) {
                return cuts.range().begin <= op && op < cuts.range().end;
            };
            if (cut.has_gradient_of_the_pass && is_inside(cut.highest))
                cuts.with(cut.highest, {this, begin_gradient, {}, {cut.bucket}});
            if ((cut.is_of_every_pass || cuts.recipe().completes_gradients) && is_inside(cut.lowest))
                cuts.after(cut.lowest, own_step({{this, reduce_gradient, {}, {cut.bucket}}}));
        }
    }

    void perform(const Hook& hook, const StagePass& pass) override {
        switch (What{hook.what}) {
            case begin_gradient: return begin(hook.buckets);
            case reduce_gradient: {
                Frontier& frontier = draft_.frontier;
                const std::int32_t index = hook.buckets[0];
                const std::uint32_t ready = frontier.last_step;
                std::uint32_t reduced = reduce(index, ready, pass.completes_gradients);
                if (bucket(index).sums_on_host) reduced = send(index, pass.micro_batch, reduced);
                if (reduced != ready && !draft_.plan.overlaps_gradient_reduction)
                    frontier.pending.push_back(reduced);
                return;
            }
        }
    }

    // Reductions that could not run beside the backward passes. Tied parameters come last: their gradients on
    // other ranks may be ready much later.
    void end(const Ending& ending) override {
        if (!ending.updates) return;
        const std::uint32_t ready = draft_.frontier.last_step;
        for (const bool tied : {false, true})
            for (const std::int32_t b : core::indices(draft_.buckets.buckets))
                if (bucket(b).tied_ranks.empty() != tied) finish(b, ready);
    }

private:
    enum What : std::uint8_t { begin_gradient, reduce_gradient };

    // Where a pass through a stage reduces a bucket.
    struct BucketCut {
        std::int32_t stage, bucket;
        std::int32_t highest, lowest;  // operators with which its gradient begins and is complete
        bool has_gradient_of_the_pass, is_of_every_pass;
    };

    const ParameterBucket& bucket(std::int32_t index) const { return draft_.buckets.buckets[index]; }

    void find_cuts() {
        for (const RankDraft::Stage& stage : draft_.stages)
            for (const std::int32_t b : core::indices(draft_.buckets.buckets)) {
                // Of stages in one direction the lowest runs backward last; stages of two directions see
                // other micro-batches each.
                const std::vector<BucketUse>& uses = draft_.buckets.uses[b];
                const auto own = draft_.program.directions == 1
                                     ? uses.begin()
                                     : std::find_if(uses.begin(), uses.end(), [&](const BucketUse& use) {
                                           return use.stage == stage.index;
                                       });
                if (own == uses.end() || own->stage != stage.index) continue;
                const bool is_of_every_pass = draft_.scatters_every_micro_batch(b) || bucket(b).sums_on_host;
                if (is_of_every_pass ||
                    (draft_.plan.overlaps_gradient_reduction && !is_reduced_at_the_end(b)))
                    cuts_.push_back({stage.index, b, own->highest_operator, own->lowest_operator,
                                     draft_.has_gradient_of_the_pass(b), is_of_every_pass});
            }
    }

    bool is_reduced_at_the_end(std::int32_t index) const {
        const ParameterBucket& b = bucket(index);
        return !b.tied_ranks.empty() || b.is_partial_over_tensor || draft_.buckets.uses[index].size() > 1;
    }
    // Hybrid sharding sums over the replicas once per step: beside the last backward pass where reductions
    // may run there (FSDP's HYBRID_SHARD), else after it.
    bool sums_replicas_beside_backward(std::int32_t index) const {
        return draft_.plan.overlaps_gradient_reduction && !is_reduced_at_the_end(index) &&
               draft_.program.directions == 1 && !draft_.is_asynchronous();
    }

    std::uint32_t append(std::int32_t index, CollectiveKind kind, GroupKind group, bool on_shard,
                         std::uint32_t after) {
        return append_collective(draft_, index, {kind, group, PayloadKind::parameter_gradient, on_shard},
                                 after);
    }

    // Whole gradients that are scattered as soon as they are complete: their buffers. While those of one step
    // are on their way, those of the next are computed; a further step waits until the first have arrived, so
    // that a slow network holds up the backward pass instead of filling the memory (FSDP2 waits for the
    // reduce-scatter before, as DeepSpeed's overlap_comm does before it reuses a bucket).
    void begin(const std::vector<std::int32_t>& buckets) {
        for (const std::int32_t b : buckets) {
            full_gradient_[b] =
                draft_.list.buffer(MemoryKind::gradients, bucket(b).padded_elements *
                                                              core::size_of(draft_.plan.precision.gradients));
            draft_.list.take(full_gradient_[b]);
        }
        draft_.list.wait_for(scatter_before_);
        scatter_before_ = last_scatter_;
    }

    // Data-parallel reduction of a bucket's gradient after instruction `after`, and the collectives over its
    // shards; returns the last of them, `after` when there is none to do. `completes`: nothing adds to the
    // gradient after this pass.
    std::uint32_t reduce(std::int32_t index, std::uint32_t after, bool completes) {
        const ParameterBucket& b = bucket(index);
        const BucketGroups groups = groups_of(draft_.plan.layout, b);
        std::uint32_t& last = draft_.frontier.reduced_on_data;
        if (groups.size == 1) return after;
        if (b.pieces == 1)
            return last = append(index, CollectiveKind::all_reduce, groups.members, false, after);
        draft_.list.give_back(full_gradient_[index]);
        full_gradient_[index] = no_buffer;
        if (b.sums_on_host) {
            full_gradient_[index] = draft_.list.buffer(
                MemoryKind::gradients, owned_bytes(draft_, index, PayloadKind::parameter_gradient));
            draft_.list.take(full_gradient_[index]);
        }
        last = last_scatter_ = append(index, CollectiveKind::reduce_scatter, groups.shard, false, after);
        // Hybrid sharding adds the pieces up over the replicas once per step (MiCS, arXiv 2205.00119,
        // section 3.4: two-hop gradient synchronisation).
        const bool sums_replicas =
            !draft_.scatters_every_micro_batch(index) || (completes && sums_replicas_beside_backward(index));
        if (sums_replicas && b.pieces < groups.size)
            last = append(index, CollectiveKind::all_reduce, groups.replica, true, last);
        return last;
    }

    // To the host, which adds it to those of the passes before.
    std::uint32_t send(std::int32_t index, std::int32_t micro_batch, std::uint32_t after) {
        draft_.list.give_back(full_gradient_[index]);
        full_gradient_[index] = no_buffer;
        std::uint32_t& sent = draft_.frontier.sent_to_host;
        return sent = last_scatter_ = append_bucket_copy(draft_, index, false, after, micro_batch);
    }

    // What is left of a bucket's reductions after the backward passes. `ready`: the last of these.
    void finish(std::int32_t index, std::uint32_t ready) {
        const ParameterBucket& b = bucket(index);
        if (b.sums_on_host) return;
        Frontier& frontier = draft_.frontier;
        const bool on_shard = draft_.scatters_every_micro_batch(index);
        const BucketGroups groups = groups_of(draft_.plan.layout, b);
        std::uint32_t after = ready;
        if (on_shard) {
            after = frontier.reduced_on_data == no_instruction ? ready : frontier.reduced_on_data;
            if (b.pieces < groups.size && !sums_replicas_beside_backward(index))
                after = frontier.reduced_on_data =
                    append(index, CollectiveKind::all_reduce, groups.replica, true, after);
        }
        if (b.is_partial_over_tensor)
            after = frontier.reduced_on_tensor =
                append(index, CollectiveKind::all_reduce, GroupKind::tensor, on_shard, after);
        if (!b.tied_ranks.empty())
            after = frontier.reduced_on_data =
                append(index, CollectiveKind::all_reduce, GroupKind::tied_stages, on_shard, after);
        if (!on_shard && (is_reduced_at_the_end(index) || !draft_.plan.overlaps_gradient_reduction))
            reduce(index, after, true);
    }

    std::vector<BucketCut> cuts_;               // by stage, then bucket
    std::vector<std::uint32_t> full_gradient_;  // by bucket: buffer of the pass; of its piece that is sent
    // Reduce-scatters, or copies to the host: the last one, and the last one when whole gradients last began.
    std::uint32_t last_scatter_ = no_instruction, scatter_before_ = no_instruction;
};

}  // namespace

std::unique_ptr<LoweringPass> gradient_reduction(RankDraft& draft) {
    if (!draft.updates()) return nullptr;
    return std::make_unique<GradientReduction>(draft);
}

}  // namespace schedule
