#include "interop/transformer_shape.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "core/errors.h"
#include "model/model_graph.h"

namespace interop {

namespace {

class ShapeReader {
public:
    explicit ShapeReader(const model::ModelGraph& graph) : graph_(graph) {}

    TransformerShape read() {
        static const std::set<std::string> decoders = {"gpt", "llama", "mixtral", "stack"};
        if (!decoders.contains(graph_.family)) {
            shape_.unsupported.push_back(
                {fmt::format("{} is of the family {}; only decoders are known", graph_.name, graph_.family)});
            return shape_;
        }
        shape_.sequence_length = graph_.tokens_per_sample;
        shape_.vocabulary = graph_.vocabulary;
        for (const model::Operator& op : graph_.operators) {
            if (op.name.starts_with("prediction.")) reasons_.insert("multi-token prediction");
            else read(op);
        }
        windows();
        mixtures();
        biases();
        activations();
        foreign();
        shape_.is_tied = !model::tied_parameters(graph_).empty();
        for (const std::string& reason : reasons_) shape_.unsupported.push_back({reason});
        return shape_;
    }

private:
    static bool has_name(const model::Operator& op, std::string_view name) { return op.name.ends_with(name); }
    std::int64_t width_of(model::TensorId tensor) const { return graph_.tensor(tensor).shape.back(); }

    void read(const model::Operator& op) {
        using enum model::OperatorKind;
        const model::Attributes& a = op.attributes;
        if (op.kind == embedding) shape_.hidden = width_of(op.output);
        if (op.kind == attention) read_attention(op);
        if (op.kind == linear) read_linear(op);
        if (op.kind == experts) read_experts(a);
        if (op.kind == rms_norm || op.kind == layer_norm) read_norm(op);
        if (op.kind == dropout && op.name.starts_with("layers.") && has_name(op, "dropout"))
            shape_.hidden_dropout = a.probability;
        if (op.kind == add && has_name(op, ".branches")) reasons_.insert("a parallel residual");
        if (op.kind == position_embedding) {
            shape_.positions = graph_.parameter(op.parameters.front()).shape.front();
            if (a.position_offset != 0) reasons_.insert("learned positions with an offset");
        }
        if (is_activation(op.kind)) activations_.insert(op.kind);
        if (is_foreign(op.kind) && !is_known_part(op)) foreign_[op.kind].push_back(&op);
    }

    static bool is_activation(model::OperatorKind kind) {
        using enum model::OperatorKind;
        return kind == gelu || kind == relu || kind == silu || kind == gated_silu || kind == gated_gelu;
    }

    // None of these decoders' layers as they usually are.
    static bool is_foreign(model::OperatorKind kind) {
        switch (kind) {
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
            case model::OperatorKind::unknown: return true;
            case model::OperatorKind::embedding:
            case model::OperatorKind::position_embedding:
            case model::OperatorKind::attention:
            case model::OperatorKind::linear:
            case model::OperatorKind::experts:
            case model::OperatorKind::rms_norm:
            case model::OperatorKind::layer_norm:
            case model::OperatorKind::dropout:
            case model::OperatorKind::gelu:
            case model::OperatorKind::relu:
            case model::OperatorKind::silu:
            case model::OperatorKind::gated_silu:
            case model::OperatorKind::gated_gelu:
            case model::OperatorKind::add:
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
            case model::OperatorKind::cross_entropy: return false;
        }
        throw core::InternalError("broken promise: every kind of operator is one of a decoder or not");
    }

    // Of latent attention, once its projection is read, and of a gated expert of all tokens.
    bool is_known_part(const model::Operator& op) {
        if (has_name(op, ".shared.weighted")) return shape_.has_shared_gate = true;
        if (shape_.key_value_rank == 0 && !is_latent_) return false;
        if (has_name(op, "attention.key_value_latent")) shape_.key_value_rank = width_of(op.output);
        else if (has_name(op, "attention.rotary_key")) shape_.rotary_dimension = width_of(op.output);
        else return has_name(op, "attention.join");
        return true;
    }

    void read_attention(const model::Operator& op) {
        const model::Attributes& a = op.attributes;
        ++shape_.layers;
        if (shape_.layers > 1 && (a.is_rotary != shape_.is_rotary || a.rotary_base != shape_.rotary_base))
            reasons_.insert("rotary positions that differ between layers");
        shape_.heads = a.heads;
        shape_.kv_heads = a.kv_heads;
        shape_.head_dimension = a.head_dimension;
        shape_.is_rotary = a.is_rotary;
        shape_.rotary_fraction = a.rotary_fraction;
        shape_.rotary_base = a.rotary_base;
        shape_.attention_dropout = a.probability;
        shape_.has_sinks = a.has_sinks;
        windows_.push_back(a.window);
        if (a.has_alibi) reasons_.insert("ALiBi positions");
        if (!a.is_causal) reasons_.insert("attention without a causal mask");
        if (a.softmax_scale != 0) reasons_.insert("a scale of scores of its own");
        shape_.value_dimension = model::value_dimension(a);
        shape_.has_query_key_norm = a.query_key_norm != model::QueryKeyNorm::none;
        if (shape_.has_query_key_norm && !is_usual_norm(op)) reasons_.insert("norms of queries and keys");
        // What of it has words of its own is none.
        model::Attributes rest = a;
        rest.query_key_norm = model::QueryKeyNorm::none;
        rest.has_sinks = false;
        if (is_latent_) rest.value_dimension.reset();
        if (const auto extension = model::attention_extension(rest)) reasons_.insert(std::string(*extension));
    }

    // Over each head, with a scale (and a shift) for all heads.
    bool is_usual_norm(const model::Operator& op) const {
        const model::Attributes& a = op.attributes;
        const std::size_t each = a.has_bias ? 2 : 1;
        return a.query_key_norm == model::QueryKeyNorm::per_head && a.has_bias != shape_.is_rms &&
               op.parameters.size() == 2 * each + (a.has_sinks ? 1 : 0) &&
               graph_.parameter(op.parameters.front()).shape.front() == a.head_dimension;
    }

    void read_linear(const model::Operator& op) {
        const bool has_bias = op.attributes.has_bias;
        if (has_name(op, "attention.qkv")) {
            shape_.has_qkv_bias = has_bias;
        } else if (has_name(op, "attention.query_down")) {
            shape_.query_rank = width_of(op.output);
            if (has_bias) reasons_.insert("biases of latents");
        } else if (has_name(op, "attention.key_value_down")) {
            is_latent_ = true;
            if (has_bias) reasons_.insert("biases of latents");
        } else if (has_name(op, "mlp.down")) {
            shape_.ffn = width_of(op.inputs.front());
            linear_biases_.insert(has_bias);
            has_dense_ = true;
        } else if (has_name(op, "mlp.shared.down")) {
            shape_.shared_ffn = width_of(op.inputs.front());
            linear_biases_.insert(has_bias);
        } else if (has_name(op, "attention.output")) {
            linear_biases_.insert(has_bias);
        } else if (has_name(op, "head.logits") && has_bias) {
            reasons_.insert("a bias in the head");
        }
    }

    void read_norm(const model::Operator& op) {
        if (op.name.find(".attention.") != std::string::npos) return;  // of latents: always the same
        shape_.is_rms = op.kind == model::OperatorKind::rms_norm;
        shape_.epsilon = op.attributes.epsilon;
        if (has_name(op, "_norm_behind")) reasons_.insert("norms behind attention and feed-forward");
        if (op.name == "embedding.norm") reasons_.insert("a norm after the embedding");
        if (!shape_.is_rms && !op.attributes.has_bias) reasons_.insert("norms without shift");
    }

    void read_experts(const model::Attributes& a) {
        shape_.is_mixture.resize(std::size_t(shape_.layers), 0);
        shape_.is_mixture.back() = 1;
        shape_.experts = a.experts;
        shape_.experts_per_token = a.experts_per_token;
        shape_.capacity_factor = a.capacity_factor;
        shape_.auxiliary_loss = a.auxiliary_loss;
        shape_.expert_ffn = a.expert_hidden;
        shape_.has_sigmoid_scores = a.has_sigmoid_scores;
        shape_.has_plain_weights = a.has_plain_weights;
        shape_.routed_scale = a.routed_scale;
        shape_.expert_groups = a.expert_groups;
        shape_.chosen_groups = a.chosen_groups;
        shape_.activation_limit = a.activation_limit;
        linear_biases_.insert(a.router_has_bias);
        linear_biases_.insert(a.experts_have_bias);
        if (a.has_sigmoid_scores && a.has_plain_weights) reasons_.insert("sigmoids as weights of experts");
        if (!a.activation_limit)
            activations_.insert(a.experts_are_gated ? a.expert_activation : model::OperatorKind::gelu);
    }

    // One window, in all layers but the last of every so many.
    void windows() {
        const std::set<std::int64_t> sizes(windows_.begin(), windows_.end());
        if (sizes.empty() || *sizes.rbegin() == 0) return;
        shape_.window = *sizes.rbegin();
        if (sizes.size() == 1) return;
        const std::int64_t first_global =
            std::find(windows_.begin(), windows_.end(), 0) - windows_.begin() + 1;
        for (std::int64_t layer = 1; const std::int64_t window : windows_)
            if ((window == 0) != (layer++ % first_global == 0) || (window > 0 && window != shape_.window)) {
                reasons_.insert("sliding windows that follow no interval");
                return;
            }
        shape_.global_interval = first_global;
    }

    void mixtures() {
        shape_.is_mixture.resize(std::size_t(shape_.layers), 0);
        if (shape_.experts == 0) return;
        if (!has_dense_) shape_.ffn = shape_.expert_ffn;
        if (shape_.activation_limit && (has_dense_ || shape_.shared_ffn > 0))
            reasons_.insert("clamped gates in some experts only");
        if (shape_.experts_per_token == 1 && !shape_.has_sigmoid_scores && !shape_.has_plain_weights)
            reasons_.insert("one expert a token whose weight is always one");
    }

    void biases() {
        if (linear_biases_.size() > 1) reasons_.insert("biases in some linear layers only");
        shape_.has_linear_bias = linear_biases_.contains(true);
        if (!shape_.has_qkv_bias && shape_.has_linear_bias)
            reasons_.insert("linear biases without one of queries, keys and values");
    }

    void activations() {
        shape_.is_gated_silu = activations_.contains(model::OperatorKind::gated_silu);
        for (const model::OperatorKind kind : activations_)
            if (kind != model::OperatorKind::gated_silu && kind != model::OperatorKind::gelu)
                reasons_.insert(fmt::format("the activation {}", model::name_of(kind)));
    }

    void foreign() {
        for (const auto& [kind, operators] : foreign_) {
            const std::size_t others = operators.size() - 1;
            reasons_.insert(
                fmt::format("{}{}, of the kind {}", operators.front()->name,
                            others > 0 ? fmt::format(" and {} other{}", others, others == 1 ? "" : "s") : "",
                            model::name_of(kind)));
        }
    }

    const model::ModelGraph& graph_;
    TransformerShape shape_;
    std::set<std::string> reasons_;
    std::map<model::OperatorKind, std::vector<const model::Operator*>> foreign_;
    std::set<model::OperatorKind> activations_;
    std::set<bool> linear_biases_;
    std::vector<std::int64_t> windows_;  // of each layer
    bool has_dense_ = false, is_latent_ = false;
};

}  // namespace

TransformerShape transformer_shape(const model::ModelGraph& graph) { return ShapeReader(graph).read(); }

std::vector<core::Unsupported> beyond_plain(const TransformerShape& shape) {
    const std::vector<char>& is_mixture = shape.is_mixture;
    const bool has_dense = std::find(is_mixture.begin(), is_mixture.end(), 0) != is_mixture.end();
    const bool has_own_router = shape.has_sigmoid_scores || shape.has_plain_weights ||
                                shape.routed_scale != 1 || shape.expert_groups > 1;
    const std::pair<bool, const char*> properties[] = {
        {shape.is_latent(), "latent attention"},
        {shape.has_query_key_norm, "norms of queries and keys"},
        {shape.has_sinks, "attention sinks"},
        {shape.window > 0 && shape.window < shape.sequence_length, "a sliding window"},
        {shape.experts > 0 && has_dense, "mixtures in some layers only"},
        {shape.shared_ffn > 0, "an expert of all tokens"},
        {has_own_router, "a rule of its own for the choice of experts and their weights"},
        {shape.activation_limit.has_value(), "clamped gates"}};
    std::vector<core::Unsupported> reasons;
    for (const auto& [is_there, what] : properties)
        if (is_there) reasons.push_back({what});
    return reasons;
}

}  // namespace interop
