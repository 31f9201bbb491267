// Sequences that pass through the pipeline in segments (Seq1F1B): attention of a segment reads the keys and
// values of the segments before, in place where their packed input is saved for backward, else from a copy;
// its backward adds to their gradients, which wait for the backward of their own segment.
#include "core/errors.h"
#include "exec/runtime/rank_executor.h"
#include "model/operators/rank_share.h"
#include "model/segment.h"

namespace exec {

namespace {

struct Packed {
    std::int64_t queries = 0, key_values = 0;  // columns of q, and of k and v together
    std::int64_t columns() const { return queries + key_values; }
};

Packed packed(const model::Operator& attention, const model::CostContext& context) {
    const model::Attributes& a = attention.attributes;
    return {model::rank_heads(attention, a.heads, context) * a.head_dimension,
            2 * model::rank_heads(attention, a.kv_heads, context) * a.head_dimension};
}

}  // namespace

void RankExecutor::add_earlier_keys(const MicroBatch& state, std::int32_t stage, std::int32_t index,
                                    bool with_gradients, Operands& operands) {
    const model::Operator& op = graph_.operators[index];
    const Packed row = packed(op, context_);
    const std::int32_t first = state.position.micro_batch - state.position.segment;
    const std::int32_t relative = index - plan_of(stage, first).operators.begin;
    for (std::int32_t k = first; k < state.position.micro_batch; ++k) {
        MicroBatch& earlier = micro_batch(stage, k);
        if (const BufferPointer& copy = earlier.key_values[relative]) {
            operands.earlier.push_back({copy->view(context_.compute), row.key_values});
        } else {
            const BufferPointer& whole = earlier.tensors[plan_of(stage, k).storage[op.inputs[0]]];
            core::require(whole != nullptr, "keys and values of earlier segments are there");
            const TensorView all = whole->view(context_.compute);
            operands.earlier.push_back({all.part(row.queries, all.elements() - row.queries), row.columns()});
        }
        if (!with_gradients) continue;
        BufferPointer& gradient = earlier.key_value_gradients[relative];
        if (!gradient) {
            gradient = make_buffer(account_, schedule::MemoryKind::activations,
                                   core::whole_bytes(model::key_value_bytes(graph_, op, context_)));
            backend_.fill_zero(gradient->data(), gradient->bytes());
        }
        operands.earlier_gradients.push_back({gradient->view(context_.compute), row.key_values});
    }
    if (with_gradients && state.key_value_gradients[relative])
        operands.later_gradient = state.key_value_gradients[relative]->view(context_.compute);
}

void RankExecutor::keep_key_values(MicroBatch& state, const StagePlan& plan, std::int32_t index) {
    if (program_.is_last_segment(state.position.micro_batch)) return;
    const model::Operator& op = graph_.operators[index];
    const std::size_t bytes = core::whole_bytes(model::key_value_bytes(graph_, op, context_));
    BufferPointer& copy = state.key_values[index - plan.operators.begin];
    copy = make_buffer(account_, schedule::MemoryKind::activations, bytes);
    const BufferPointer& whole = state.tensors[plan.storage[op.inputs[0]]];
    backend_.operators().pack_keys(model::OperatorId(index), whole->view(context_.compute),
                                   copy->view(context_.compute));
}

}  // namespace exec
