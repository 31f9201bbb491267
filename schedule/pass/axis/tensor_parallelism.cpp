// Tensor parallelism: the collectives of parallel regions (parallel_enter and parallel_exit, the conjugate f
// and g of Megatron-LM, arXiv 1909.08053), with sequence parallelism gathers and scatters of tokens
// (arXiv 2205.05198), and the statistics of a loss over a split vocabulary.
#include <algorithm>

#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

using model::OperatorKind;

class TensorParallelism : public LoweringPass {
public:
    explicit TensorParallelism(RankDraft& draft) : LoweringPass(draft), context_(draft.plan.cost_context()) {}

    void cut(OperatorCuts& cuts) override {
        if (cuts.is_forward()) cut_forward(cuts);
        else cut_backward(cuts);
    }

private:
    const model::Operator& op(std::int32_t i) const { return draft_.graph->operators[i]; }
    core::Bytes input_bytes(std::int32_t i) const {
        return model::tensor_bytes(*draft_.graph, op(i).inputs[0], context_);
    }
    core::Bytes output_bytes(std::int32_t i) const {
        return model::tensor_bytes(*draft_.graph, op(i).output, context_);
    }
    bool is_split_loss(std::int32_t i) const {
        return op(i).kind == OperatorKind::loss_statistics &&
               draft_.graph->tensor(op(i).output).split == model::TensorSplit::partial;
    }

    void cut_forward(OperatorCuts& cuts) const {
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i) {
            const auto step = [&](CollectiveKind kind, core::Bytes bytes) {
                return collective_step({i, i + 1}, kind, GroupKind::tensor, PayloadKind::activation,
                                       cuts.phase(), bytes);
            };
            if (model::gathers_tokens(op(i), context_))
                cuts.instead(i, step(CollectiveKind::all_gather, output_bytes(i)));
            else if (op(i).kind == OperatorKind::parallel_exit && context_.sequence_parallel)
                cuts.instead(i, step(CollectiveKind::reduce_scatter, input_bytes(i)));
            else if (op(i).kind == OperatorKind::parallel_exit)
                cuts.instead(i, step(CollectiveKind::all_reduce, output_bytes(i)));
            else if (is_split_loss(i))
                cuts.after(i, step(CollectiveKind::all_gather, output_bytes(i) * context_.tensor_parallel));
        }
    }

    void cut_backward(OperatorCuts& cuts) const {
        const bool has_input_part = cuts.phase() != ComputePhase::backward_weight;
        std::vector<std::int32_t> gathered;  // enters whose output is there
        for (std::int32_t i = cuts.range().end - 1; i >= cuts.range().begin; --i) {
            if (cuts.phase() != ComputePhase::backward_input) gather_again(cuts, i, gathered);
            if (!has_input_part) continue;
            const auto step = [&](CollectiveKind kind, core::Bytes bytes) {
                return collective_step({i, i + 1}, kind, GroupKind::tensor, PayloadKind::activation_gradient,
                                       cuts.phase(), bytes);
            };
            if (op(i).kind == OperatorKind::parallel_enter)
                cuts.instead(i, step(context_.sequence_parallel ? CollectiveKind::reduce_scatter
                                                                : CollectiveKind::all_reduce,
                                     output_bytes(i)));
            else if (op(i).kind == OperatorKind::parallel_exit && context_.sequence_parallel)
                cuts.instead(i, step(CollectiveKind::all_gather, input_bytes(i)));
        }
    }

    // The weight gradient needs what the enter gathered; only its share was kept.
    void gather_again(OperatorCuts& cuts, std::int32_t i, std::vector<std::int32_t>& gathered) const {
        for (const model::TensorId tensor : op(i).inputs) {
            const std::int32_t producer = draft_.graph->tensor(tensor).producer.index;
            if (!model::gathers_tokens(op(producer), context_)) continue;
            // Not where it keeps a copy of its own: a scaled input.
            const std::vector<model::TensorId> read =
                model::saved_for_backward(*draft_.graph, model::OperatorId(i), context_).tensors;
            if (std::find(read.begin(), read.end(), model::storage_of(*draft_.graph, tensor)) == read.end())
                continue;
            if (std::find(gathered.begin(), gathered.end(), producer) != gathered.end()) continue;
            gathered.push_back(producer);
            Step step =
                collective_step({producer, producer + 1}, CollectiveKind::all_gather, GroupKind::tensor,
                                PayloadKind::activation, ComputePhase::recompute, output_bytes(producer));
            step.starts_early = true;
            cuts.before(i, std::move(step));
        }
    }

    const model::CostContext context_;
};

}  // namespace

std::unique_ptr<LoweringPass> tensor_parallelism(RankDraft& draft) {
    if (draft.plan.layout.tensor == 1) return nullptr;
    return std::make_unique<TensorParallelism>(draft);
}

}  // namespace schedule
