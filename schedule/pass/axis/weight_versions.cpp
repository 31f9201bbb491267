// Asynchronous schedules: the update whose parameters each micro-batch began with, and the parameters that an
// update replaces while a micro-batch in flight needs them.
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class WeightVersions : public LoweringPass {
public:
    explicit WeightVersions(RankDraft& draft)
        : LoweringPass(draft), version_of_(draft.order.micro_batches, 0), replaced_(version_of_.size()) {}

    void begin_pass(StagePass& pass) override {
        if (pass.phase == ComputePhase::forward) {
            version_of_[pass.micro_batch] = updates_;
            ++forwards_;
        }
        if (pass.phase == ComputePhase::backward) {
            ++backwards_;
            std::vector<std::uint32_t>& replaced = replaced_[pass.micro_batch];
            pass.gives_back.insert(pass.gives_back.end(), replaced.begin(), replaced.end());
            replaced.clear();
        }
    }

    // The newest micro-batch in flight began with the parameters that are replaced, and they stay until its
    // backward, the last to read them.
    void end(const Ending& ending) override {
        if (!ending.updates) return;
        const std::int32_t newest = forwards_ - 1;
        if (forwards_ > backwards_ && version_of_[newest] == updates_)
            for (const ParameterBucket& bucket : draft_.buckets.buckets) {
                const std::uint32_t buffer = draft_.list.buffer(
                    MemoryKind::parameters,
                    bucket.padded_elements * core::size_of(draft_.plan.precision.parameters));
                draft_.list.take(buffer);
                replaced_[newest].push_back(buffer);
            }
        ++updates_;
    }

private:
    std::int32_t updates_ = 0, forwards_ = 0, backwards_ = 0;  // begun so far
    std::vector<std::int32_t> version_of_;                     // by micro-batch
    std::vector<std::vector<std::uint32_t>> replaced_;         // by the micro-batch that gives them back
};

}  // namespace

std::unique_ptr<LoweringPass> weight_versions(RankDraft& draft) {
    if (!draft.is_asynchronous()) return nullptr;
    return std::make_unique<WeightVersions>(draft);
}

}  // namespace schedule
