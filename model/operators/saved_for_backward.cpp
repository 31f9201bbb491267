// Tensors and contexts that an autograd engine keeps between forward and backward, operator by operator.
// Those of a GPT layer sum to the count of Korthikanti et al. (arXiv 2205.05198, section 4.1).
#include <algorithm>

#include "model/operators/element_bytes.h"
#include "model/operators/rank_share.h"

namespace model {

SavedForBackward saved_for_backward(const ModelGraph& graph, OperatorId id, const CostContext& context) {
    const Operator& op = graph.op(id);
    SavedForBackward saved;
    if (!graph.tensor(op.output).is_activation && op.kind != OperatorKind::cross_entropy)
        return saved;  // no backward
    if (op.attributes.is_frozen) return saved;
    const double size = core::size_of(context.compute).value;
    auto keep = [&](TensorId tensor) {
        const TensorId storage = storage_of(graph, tensor);
        if (std::find(saved.tensors.begin(), saved.tensors.end(), storage) == saved.tensors.end())
            saved.tensors.push_back(storage);
    };
    constexpr std::size_t usually_saved = 4;
    saved.tensors.reserve(usually_saved);
    const RankMatrix y = rank_matrix(graph, op.output, context);
    switch (op.kind) {
        case OperatorKind::input:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::add:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice: break;
        case OperatorKind::matrix_product:
        case OperatorKind::convolution:
        case OperatorKind::unknown:
            // An unknown operator saves its inputs, as a general product does.
            for (TensorId input : op.inputs) keep(input);
            break;
        case OperatorKind::elementwise:
            if (op.attributes.saves_inputs)
                for (TensorId input : op.inputs) keep(input);
            if (op.attributes.saves_output) keep(op.output);
            break;
        case OperatorKind::softmax: keep(op.output); break;
        case OperatorKind::normalization:
            keep(op.inputs[0]);
            saved.saved_context =
                core::Bytes(mean_and_deviation_bytes * y.elements() /
                            graph.tensor(op.output).shape.back());  // as a layer norm: per row
            break;
        case OperatorKind::reduce:
        case OperatorKind::pooling:
            if (op.attributes.is_maximum)
                saved.saved_context = core::Bytes(index_bytes * y.elements());  // of each maximum
            break;
        case OperatorKind::gather:
            if (!op.inputs.empty() && !graph.tensor(op.inputs.back()).is_activation) keep(op.inputs.back());
            break;
        case OperatorKind::embedding: keep(op.inputs[0]); break;
        case OperatorKind::select_positions: keep(op.inputs[1]); break;
        case OperatorKind::linear:
            if (op.attributes.input_scale != 1.0)
                saved.saved_context = tensor_bytes(graph, op.inputs[0], context);  // the scaled copy
            else keep(op.inputs[0]);
            break;
        case OperatorKind::layer_norm:
            keep(op.inputs[0]);
            saved.saved_context = core::Bytes(mean_and_deviation_bytes * y.rows);
            break;
        case OperatorKind::rms_norm:
            keep(op.inputs[0]);
            // The reciprocal root of each row's mean square.
            saved.saved_context = core::Bytes(fp32_bytes * y.rows);
            break;
        case OperatorKind::batch_norm:
            keep(op.inputs[0]);
            saved.saved_context = core::Bytes(mean_and_deviation_bytes * graph.tensor(op.output).shape[0]);
            break;
        case OperatorKind::attention: {
            for (TensorId input : op.inputs) keep(input);
            const AttentionShape shape = attention_shape(graph, op, context);
            if (context.attention == AttentionImplementation::flash) {
                saved.saved_context = core::Bytes(fp32_bytes * shape.rows *
                                                  shape.heads);  // logarithm of the sum of exponentials
                if (!keeps_exchanged_output(op, context)) keep(op.output);
            } else {
                // Probabilities. With dropout also its mask, and the dropped probabilities, which multiply
                // the values.
                saved.saved_context = core::Bytes(
                    shape.scores() * (op.attributes.probability > 0 ? 2 * size + mask_bytes : size));
            }
            // Normalised queries and keys are kept beside what they were made of; a soft cap its tangents.
            if (op.attributes.query_key_norm != QueryKeyNorm::none)
                saved.saved_context += core::Bytes(shape.rows * size * shape.head_dimension *
                                                   (static_cast<double>(shape.heads) + shape.kv_heads));
            if (op.attributes.soft_cap && context.attention != AttentionImplementation::flash)
                saved.saved_context += core::Bytes(shape.scores() * size);
            if (keeps_exchanged_output(op, context))
                saved.saved_context += tensor_bytes(graph, op.output, context);
            saved.recomputable_context = saved.saved_context;
            break;
        }
        case OperatorKind::gelu:
        case OperatorKind::silu:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::conv2d: keep(op.inputs[0]); break;
        case OperatorKind::relu:
        case OperatorKind::tanh: keep(op.output); break;
        case OperatorKind::dropout: saved.saved_context = core::Bytes(mask_bytes * y.elements()); break;
        case OperatorKind::max_pool:
            saved.saved_context = core::Bytes(index_bytes * y.elements());
            break;  // of each maximum, not the input
        case OperatorKind::router:
            keep(op.inputs[0]);
            keep(op.output);
            if (sums_choices(op, context))
                saved.saved_context =
                    choices_bytes(op);  // of the group, from backward_input to backward_weight
            break;
        case OperatorKind::dispatch: keep(op.inputs[1]); break;
        case OperatorKind::experts: {
            for (TensorId input : op.inputs) keep(input);
            // First product and its activation (for the weights' gradient).
            const MixtureShape s = mixture_shape(graph, op, context);
            const core::Bytes first(static_cast<double>(s.routed_tokens) * size * s.first_width),
                activated(static_cast<double>(s.routed_tokens) * size * s.width);
            saved.saved_context = context.remakes_expert_activation ? first : first + activated;
            if (context.remakes_expert_activation) saved.late_context = activated;
            break;
        }
        case OperatorKind::combine:
            for (TensorId input : op.inputs) keep(input);
            break;
        case OperatorKind::cross_entropy:
            for (TensorId input : op.inputs) keep(input);
            if (!context.fused_cross_entropy)
                saved.saved_context = core::Bytes(
                    fp32_bytes * rank_matrix(graph, op.inputs[0], context).elements());  // (log-)softmax
            break;
    }
    return saved;
}

bool gradient_overwrites(const ModelGraph& graph, TensorId id, const CostContext& context) {
    const Tensor& tensor = graph.tensor(id);
    if (!context.fused_cross_entropy || tensor.consumers.empty() ||
        graph.op(tensor.producer).kind != OperatorKind::linear || !has_gradient(graph, id))
        return false;
    return std::all_of(tensor.consumers.begin(), tensor.consumers.end(), [&](OperatorId reader) {
        const OperatorKind kind = graph.op(reader).kind;
        return kind == OperatorKind::loss_statistics || kind == OperatorKind::cross_entropy;
    });
}

}  // namespace model
