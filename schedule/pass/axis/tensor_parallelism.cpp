// Tensor parallelism: the collectives of parallel regions (parallel_enter and parallel_exit, the conjugate f
// and g of Megatron-LM, arXiv 1909.08053), with sequence parallelism gathers and scatters of tokens
// (arXiv 2205.05198), and the statistics of a loss over a split vocabulary.
// With Plan::tensor_overlap products run in pieces beside their exchange (schedule/program/pieces.h): a
// row-parallel one forward, the input gradient of a column-parallel one backward.
#include <algorithm>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/program/pieces.h"

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
            else if (op(i).kind == OperatorKind::parallel_exit)
                cut_exchange(cuts, i - 1,
                             context_.sequence_parallel ? step(CollectiveKind::reduce_scatter, input_bytes(i))
                                                        : step(CollectiveKind::all_reduce, output_bytes(i)));
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
                cut_exchange(cuts, i + 1,
                             step(context_.sequence_parallel ? CollectiveKind::reduce_scatter
                                                             : CollectiveKind::all_reduce,
                                  output_bytes(i)));
            else if (op(i).kind == OperatorKind::parallel_exit && context_.sequence_parallel)
                cuts.instead(i, step(CollectiveKind::all_gather, input_bytes(i)));
        }
    }

    // Pieces in which the operator can be computed beside the exchange; 1: as a whole. What comes between two
    // stages is exchanged whole: the last piece would end a pass whose products are not over.
    int pieces_of(const OperatorCuts& cuts, std::int32_t product, const Step& exchange) const {
        if (draft_.plan.tensor_overlap == 1) return 1;
        const std::int32_t other = exchange.operators.begin;
        const std::int32_t first = std::min(product, other), last = std::max(product, other);
        if (first < cuts.range().begin || last >= cuts.range().end) return 1;
        if (!cuts.is_forward() && first == cuts.range().begin) return 1;
        if (!is_one_product(product)) return 1;
        const model::Operator& own = op(product);
        const model::TensorId exchanged = cuts.is_forward() ? own.output : own.inputs[0];
        const std::vector<model::OperatorId>& readers = draft_.graph->tensor(exchanged).consumers;
        if (readers.size() != 1 || draft_.graph->tensor(exchanged).producer.index != first) return 1;
        // Logits may lie the other way round on GPUs.
        const std::vector<model::OperatorId>& next = draft_.graph->tensor(own.output).consumers;
        if (std::any_of(next.begin(), next.end(), [&](model::OperatorId reader) {
                const OperatorKind kind = draft_.graph->op(reader).kind;
                return kind == OperatorKind::loss_statistics || kind == OperatorKind::cross_entropy;
            }))
            return 1;
        return schedule::pieces_of(draft_.plan.tensor_overlap, shared_rows(product));
    }
    // Not with passes over its input or result beside it, as of a scaled input.
    bool is_one_product(std::int32_t i) const {
        const std::vector<model::Kernel> kernels =
            model::kernels(*draft_.graph, model::OperatorId(i), model::Phase::forward, context_);
        return kernels.size() == 1 && kernels[0].kind == model::KernelKind::matrix_product &&
               kernels[0].batch == 1;
    }
    // Of what the exchange leaves a rank.
    std::int64_t shared_rows(std::int32_t product) const {
        const std::int64_t rows = model::rank_matrix(*draft_.graph, op(product).output, context_).rows;
        return context_.sequence_parallel ? rows / context_.tensor_parallel : rows;
    }

    // The exchange of a product's result, or of the gradient of its input. All that follows waits for the
    // last piece; the gradient of the weights runs beside it.
    void cut_exchange(OperatorCuts& cuts, std::int32_t product, const Step& exchange) const {
        const std::int32_t other = exchange.operators.begin;
        const int pieces = pieces_of(cuts, product, exchange);
        if (pieces <= 1) return cuts.instead(other, exchange);
        const auto rows = shared_rows(product);
        const auto piece_of = [&](Step step, int piece) {
            step.piece = core::narrow<std::uint8_t>(piece);
            step.pieces = core::narrow<std::uint8_t>(pieces);
            return step;
        };
        const Step work = compute_step({product, product + 1}, cuts.phase());
        for (int piece = 0; piece < pieces; ++piece) {
            Step message = piece_of(exchange, piece);
            message.bytes =
                exchange.bytes * (double(rows_of_piece(rows, piece, pieces).size()) / double(rows));
            cuts.instead(product, piece_of(work, piece));
            const bool is_last = piece + 1 == pieces;
            if (is_last && cuts.phase() == ComputePhase::backward)
                cuts.instead(product, piece_of(work, pieces));
            cuts.instead(is_last ? other : product, std::move(message));
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
