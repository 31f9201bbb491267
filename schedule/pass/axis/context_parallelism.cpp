// Context parallelism. Keys and values are gathered before an attention, forward and again before its
// backward, and the gradients of what was gathered are scattered after it; or tokens of all heads are
// exchanged for all tokens of some heads before it, what it makes of them back after it, and gradients the
// same ways; or an attention is in pieces, and keys and values pass on in a ring beside them.
#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/recompute.h"

namespace schedule {

namespace {

class ContextParallelism : public LoweringPass {
public:
    explicit ContextParallelism(RankDraft& draft)
        : LoweringPass(draft), context_(draft.plan.cost_context()) {}

    void cut(OperatorCuts& cuts) override {
        if (!cuts.is_forward() && cuts.phase() == ComputePhase::backward_weight) return;
        const model::ModelGraph& graph = *draft_.graph;
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i) {
            const model::Operator& op = graph.operators[i];
            const auto step = [&](CollectiveKind kind, PayloadKind payload, ComputePhase phase,
                                  core::Bytes bytes) {
                return collective_step({i, i + 1}, kind, GroupKind::context, payload, phase, bytes);
            };
            if (model::gathers_keys(op, context_)) {
                const core::Bytes bytes = model::gathered_key_bytes(graph, op, context_);
                const ComputePhase phase = cuts.is_forward() ? cuts.phase() : ComputePhase::recompute;
                cuts.before(i, step(CollectiveKind::all_gather, PayloadKind::activation, phase, bytes));
                if (!cuts.is_forward())
                    cuts.after(i, step(CollectiveKind::reduce_scatter, PayloadKind::activation_gradient,
                                       cuts.phase(), bytes));
            }
            if (model::exchanges_heads(op, context_)) {
                const auto exchange = [&](model::TensorId tensor) {
                    return step(
                        CollectiveKind::all_to_all,
                        cuts.is_forward() ? PayloadKind::activation : PayloadKind::activation_gradient,
                        cuts.phase(), model::tensor_bytes(graph, tensor, context_));
                };
                cuts.before(i, exchange(cuts.is_forward() ? op.inputs[0] : op.output));
                cuts.after(i, exchange(cuts.is_forward() ? op.output : op.inputs[0]));
            }
            if (model::passes_keys(op, context_)) {
                if (!cuts.is_forward() && is_recomputed(op, draft_.plan))
                    cut_ring(cuts, i, ComputePhase::recompute);
                cut_ring(cuts, i, cuts.phase());
            }
        }
    }

private:
    // A piece attends to the keys that came beside the one before it. Forward a rank's own are the first, and
    // the last that came are kept; backward begins with these and ends with its own. Gradients of keys pass
    // on behind them, so the last of them come home beside the last piece (Transformer Engine's
    // context_parallel.py, d0067d0da, 2026-08-22).
    void cut_ring(OperatorCuts& cuts, std::int32_t op, ComputePhase phase) const {
        const model::Operator& attention = draft_.graph->operators[op];
        const core::Bytes keys = model::passed_key_bytes(*draft_.graph, attention, context_);
        const bool is_forward = phase == ComputePhase::forward || phase == ComputePhase::recompute;
        const int pieces = model::ring_pieces(context_);
        const auto add = [&](Step step, int piece) {
            step.piece = core::narrow<std::uint8_t>(piece);
            step.pieces = core::narrow<std::uint8_t>(pieces);
            step.is_in_ring = true;
            cuts.instead(op, std::move(step));
        };
        for (int piece = 0; piece < pieces; ++piece) {
            const int arrays =
                (piece + 1 < pieces ? 1 : 0) + (!is_forward && piece > 0 ? 1 : 0);  // keys, their gradients
            if (arrays > 0)
                add(collective_step({op, op + 1}, CollectiveKind::rotate, GroupKind::context,
                                    is_forward ? PayloadKind::activation : PayloadKind::activation_gradient,
                                    phase, keys * arrays),
                    piece);
            add(compute_step({op, op + 1}, phase), piece);
        }
        if (phase == ComputePhase::backward && !attention.parameters.empty())
            add(compute_step({op, op + 1}, phase), pieces);
    }

    const model::CostContext context_;
};

}  // namespace

std::unique_ptr<LoweringPass> context_parallelism(RankDraft& draft) {
    if (draft.plan.layout.context == 1) return nullptr;
    return std::make_unique<ContextParallelism>(draft);
}

}  // namespace schedule
