// What a rank holds from start to end of a step: parameters, gradients, optimizer state, each whole or this
// rank's shard of it.
#include "core/index/integers.h"
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class State : public LoweringPass {
public:
    using LoweringPass::LoweringPass;

    void begin_step() override {
        const Plan& plan = draft_.plan;
        double parameters = 0, gradients = 0, states = 0;
        for (const std::int32_t b : core::indices(draft_.buckets.buckets)) {
            const ParameterBucket& bucket = draft_.buckets.buckets[b];
            const double whole = bucket.padded_elements, pieces = bucket.pieces;
            const auto share = [&](Sharding what) { return plan.sharding >= what ? whole / pieces : whole; };
            if (!plan.keeps_parameters_on_hosts()) parameters += share(Sharding::parameters);
            if (!bucket.sums_on_host) gradients += share(Sharding::gradients);
            // A gradient that several stages of the rank add to stays whole between their passes.
            if (draft_.scatters_every_micro_batch(b) && !draft_.has_gradient_of_the_pass(b))
                gradients += whole;
            states += share(Sharding::optimizer);
        }
        InstructionList& list = draft_.list;
        list.persistent(MemoryKind::parameters, parameters * core::size_of(plan.precision.parameters));
        if (!draft_.trains()) return;
        list.persistent(MemoryKind::gradients, gradients * core::size_of(plan.precision.gradients));
        if (!draft_.updates()) return;
        list.persistent(MemoryKind::optimizer, states * optimizer_bytes_on_device(plan));
    }
};

}  // namespace

std::unique_ptr<LoweringPass> state(RankDraft& draft) { return std::make_unique<State>(draft); }

}  // namespace schedule
