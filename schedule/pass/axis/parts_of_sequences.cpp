// Where sequences pass in parts (model/segment.h), attention of the last part, which goes backward first,
// leaves gradients for the keys and values of the parts before it: their buffers.
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class KeyValueGradients : public LoweringPass {
public:
    explicit KeyValueGradients(RankDraft& draft)
        : LoweringPass(draft), of_(draft.stages.size(), std::vector<Buffers>(draft.order.micro_batches)) {}

    void begin_pass(StagePass& pass) override {
        std::vector<Buffers>& buffers = of_[pass.local];
        if (pass.phase == ComputePhase::forward) begin_forward(pass, buffers);
        if (pass.phase != ComputePhase::backward) return;
        if (draft_.program.is_last_segment(pass.micro_batch)) begin_backward(pass, buffers);
        // A part's own backward is the last to need its gradients.
        const Buffers& own = buffers[pass.micro_batch];
        pass.gives_back.insert(pass.gives_back.end(), {own.gradient, own.reused});
    }

private:
    struct Buffers {
        std::uint32_t gradient = no_buffer, reused = no_buffer;
    };

    // Where the gradients of earlier parts will reuse memory of this one's activations, that memory is
    // counted for them from now on.
    void begin_forward(StagePass& pass, std::vector<Buffers>& buffers) const {
        const int earlier = draft_.program.segment_of(pass.micro_batch);
        for (int i = 1; i <= earlier && pass.footprint.reused.value > 0; ++i)
            pass.takes.push_back(buffers[pass.micro_batch - i].reused = draft_.list.buffer(
                                     MemoryKind::activations, pass.footprint.reused / earlier));
    }
    // The last part makes the gradients of all before it.
    void begin_backward(StagePass& pass, std::vector<Buffers>& buffers) const {
        const int earlier = draft_.program.segment_of(pass.micro_batch);
        for (int i = 1; i <= earlier; ++i)
            pass.takes.push_back(buffers[pass.micro_batch - i].gradient = draft_.list.buffer(
                                     MemoryKind::activations,
                                     pass.footprint.key_value_gradient - pass.footprint.reused / earlier));
    }

    std::vector<std::vector<Buffers>> of_;  // [stage of the rank][micro-batch of the Program]
};

}  // namespace

std::unique_ptr<LoweringPass> parts_of_sequences(RankDraft& draft) {
    if (!draft.program.cuts_sequences()) return nullptr;
    return std::make_unique<KeyValueGradients>(draft);
}

}  // namespace schedule
