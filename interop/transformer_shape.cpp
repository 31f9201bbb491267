#include "interop/transformer_shape.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/core.h>

#include "model/model_graph.h"

namespace interop {

namespace {

bool ends_with_name(const model::Operator& op, const char* name) { return op.name.ends_with(name); }

}  // namespace

TransformerShape transformer_shape(const model::ModelGraph& graph) {
    TransformerShape shape;
    const std::set<std::string> decoders = {"gpt", "llama", "mixtral", "stack"};
    if (!decoders.count(graph.family)) {
        shape.unsupported.push_back(
            {fmt::format("{} is of the family {}; only decoders are known", graph.name, graph.family)});
        return shape;
    }
    shape.sequence_length = graph.tokens_per_sample;
    shape.vocabulary = graph.vocabulary;
    std::set<std::string> reasons;
    std::map<model::OperatorKind, std::vector<const model::Operator*>> foreign;
    std::set<model::OperatorKind> activations;
    bool is_parallel = false, has_dense = false;
    std::int64_t mixtures = 0;
    std::set<bool> linear_biases;
    for (const model::Operator& op : graph.operators) {
        const model::Attributes& a = op.attributes;
        const auto width_of = [&](model::TensorId tensor) { return graph.tensor(tensor).shape.back(); };
        switch (op.kind) {
            case model::OperatorKind::embedding: shape.hidden = width_of(op.output); break;
            case model::OperatorKind::position_embedding:
                shape.positions = graph.parameter(op.parameters.front()).shape.front();
                if (a.position_offset != 0) reasons.insert("learned positions with an offset");
                break;
            case model::OperatorKind::attention:
                ++shape.layers;
                if (shape.layers > 1 &&
                    (a.is_rotary != shape.is_rotary || a.rotary_base != shape.rotary_base))
                    reasons.insert("rotary positions that differ between layers");
                shape.heads = a.heads;
                shape.kv_heads = a.kv_heads;
                shape.head_dimension = a.head_dimension;
                shape.is_rotary = a.is_rotary;
                shape.rotary_fraction = a.rotary_fraction;
                shape.rotary_base = a.rotary_base;
                shape.attention_dropout = a.probability;
                if (a.has_alibi) reasons.insert("ALiBi positions");
                if (a.window > 0) reasons.insert("a sliding window");
                if (!a.is_causal) reasons.insert("attention without a causal mask");
                if (const auto extension = model::attention_extension(a))
                    reasons.insert(std::string(*extension));
                if (a.softmax_scale != 0) reasons.insert("a scale of scores of its own");
                break;
            case model::OperatorKind::linear:
                if (ends_with_name(op, "attention.qkv")) shape.has_qkv_bias = a.has_bias;
                else if (ends_with_name(op, "mlp.down")) {
                    shape.ffn = width_of(op.inputs.front());
                    linear_biases.insert(a.has_bias);
                    has_dense = true;
                } else if (ends_with_name(op, "attention.output")) linear_biases.insert(a.has_bias);
                else if (ends_with_name(op, "head.logits") && a.has_bias)
                    reasons.insert("a bias in the head");
                break;
            case model::OperatorKind::experts:
                ++mixtures;
                shape.experts = a.experts;
                shape.experts_per_token = a.experts_per_token;
                shape.capacity_factor = a.capacity_factor;
                shape.auxiliary_loss = a.auxiliary_loss;
                shape.ffn = a.expert_hidden;
                if (model::has_extended_routing(a))
                    reasons.insert("a rule of its own for the choice of experts and their weights");
                if (a.experts_are_gated) activations.insert(model::OperatorKind::gated_silu);
                break;
            case model::OperatorKind::rms_norm:
                if (op.name.ends_with("_norm_behind"))
                    reasons.insert("norms behind attention and feed-forward");
                shape.is_rms = true;
                shape.epsilon = a.epsilon;
                break;
            case model::OperatorKind::layer_norm:
                shape.epsilon = a.epsilon;
                if (!a.has_bias) reasons.insert("norms without shift");
                if (op.name == "embedding.norm") reasons.insert("a norm after the embedding");
                break;
            case model::OperatorKind::dropout:
                if (op.name.starts_with("layers.") && op.name.ends_with("dropout"))
                    shape.hidden_dropout = a.probability;
                break;
            case model::OperatorKind::gelu:
            case model::OperatorKind::relu:
            case model::OperatorKind::silu:
            case model::OperatorKind::gated_silu:
            case model::OperatorKind::gated_gelu: activations.insert(op.kind); break;
            case model::OperatorKind::add:
                is_parallel = is_parallel || ends_with_name(op, ".branches");
                break;
            case model::OperatorKind::input:
            case model::OperatorKind::prepend_token:
            case model::OperatorKind::batch_norm:
            case model::OperatorKind::tanh:
            case model::OperatorKind::conv2d:
            case model::OperatorKind::max_pool:
            case model::OperatorKind::average_pool:
            case model::OperatorKind::flatten:
            case model::OperatorKind::transpose:
            case model::OperatorKind::merge_patches:
            case model::OperatorKind::average_tokens:
            case model::OperatorKind::select_first_token:
            case model::OperatorKind::select_positions:
            case model::OperatorKind::router:
            case model::OperatorKind::dispatch:
            case model::OperatorKind::combine:
            case model::OperatorKind::parallel_enter:
            case model::OperatorKind::parallel_exit:
            case model::OperatorKind::loss_statistics:
            case model::OperatorKind::cross_entropy: break;  // these say nothing of the shape
            case model::OperatorKind::matrix_product:
            case model::OperatorKind::elementwise:
            case model::OperatorKind::softmax:
            case model::OperatorKind::normalization:
            case model::OperatorKind::reduce:
            case model::OperatorKind::concat:
            case model::OperatorKind::reshape:
            case model::OperatorKind::permute:
            case model::OperatorKind::slice:
            case model::OperatorKind::gather:
            case model::OperatorKind::pooling:
            case model::OperatorKind::convolution:
            case model::OperatorKind::unknown: foreign[op.kind].push_back(&op); break;
        }
    }
    for (const auto& [kind, operators] : foreign) {
        const std::size_t others = operators.size() - 1;
        reasons.insert(
            fmt::format("{}{}, of the kind {}", operators.front()->name,
                        others > 0 ? fmt::format(" and {} other{}", others, others == 1 ? "" : "s") : "",
                        model::name_of(kind)));
    }
    if (is_parallel) reasons.insert("a parallel residual");
    if (mixtures > 0 && has_dense) reasons.insert("mixtures in some layers only");
    if (linear_biases.size() > 1) reasons.insert("biases in some linear layers only");
    shape.has_linear_bias = linear_biases.count(true) > 0;
    if (!shape.has_qkv_bias && shape.has_linear_bias)
        reasons.insert("linear biases without one of queries, keys and values");
    shape.is_gated_silu = activations.count(model::OperatorKind::gated_silu) > 0;
    for (const model::OperatorKind kind : activations)
        if (kind != model::OperatorKind::gated_silu && kind != model::OperatorKind::gelu)
            reasons.insert(fmt::format("the activation {}", model::name_of(kind)));
    shape.is_tied = !model::tied_parameters(graph).empty();
    for (const std::string& reason : reasons) shape.unsupported.push_back({reason});
    return shape;
}

}  // namespace interop
