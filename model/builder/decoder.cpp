#include "model/builder/decoder.h"

#include <algorithm>
#include <cmath>

#include "core/errors.h"
#include "model/builder/transformer_layer.h"

namespace model {

namespace {

TensorId norm(GraphBuilder& builder, const std::string& name, TensorId x, const DecoderDescription& d) {
    switch (d.norm) {
        case NormKind::rms_norm: return builder.rms_norm(name, x, d.epsilon);
        case NormKind::layer_norm: return builder.layer_norm(name, x, d.epsilon);
        case NormKind::layer_norm_without_shift: return builder.layer_norm(name, x, d.epsilon, false);
        case NormKind::layer_norm_without_parameters: return builder.plain_norm(name, x, d.epsilon);
    }
    throw core::InternalError("a norm outside its enumeration");
}

// x itself when the factor is one.
TensorId scaled(GraphBuilder& builder, const std::string& name, TensorId x, double factor) {
    return factor == 1 ? x : builder.elementwise(name, {x});
}

bool contains(const std::vector<std::int64_t>& layers, std::int64_t layer) {
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

bool has_window(const DecoderDescription& d, std::int64_t layer) {
    if (d.window == 0) return false;
    if (!d.window_layers.empty()) return contains(d.window_layers, layer);
    if (d.global_interval > 0) return (layer + 1) % d.global_interval != 0;
    return layer >= d.first_window_layer;
}

bool is_rotated(const DecoderDescription& d, std::int64_t layer) {
    if (d.encoding != PositionEncoding::rotary || contains(d.unrotated_layers, layer)) return false;
    return d.rotation_interval == 0 || (layer + 1) % d.rotation_interval != 0;
}

struct LayerRecipe {
    AttentionLayer attention;
    FeedForward mlp, shared;
    Attributes mixture;
    bool is_mixture = false, has_shared_gate = false, is_first = false;
};

void describe_attention(AttentionLayer& attention, const DecoderDescription& d, std::int64_t layer) {
    Attributes& a = attention.attributes;
    a.heads = d.heads;
    a.kv_heads = d.kv_heads;
    a.head_dimension = d.head_dimension;
    a.is_causal = d.is_causal;
    a.is_rotary = is_rotated(d, layer);
    a.rotary_fraction = d.rotary_fraction;
    a.rotary_base = d.rotary_base;
    a.has_alibi = d.encoding == PositionEncoding::alibi;
    a.probability = d.attention_dropout;
    a.softmax_scale = d.softmax_scale;
    a.soft_cap = d.score_soft_cap;
    a.has_sinks = d.has_sinks;
    a.query_key_norm = d.query_key_norm;
    if (a.query_key_norm != QueryKeyNorm::none) {
        a.epsilon = d.epsilon;
        a.has_bias = d.query_key_norm_kind != NormKind::rms_norm;  // layer norms, with a shift or without
    }
    if (has_window(d, layer)) {
        if (!d.has_chunks) a.window = d.window;
        else if (d.window < d.sequence_length) a.local_window = d.window;
        a.rotary_base = d.window_rotary_base.value_or(d.rotary_base);
    }
    attention.latent = d.latent;
    if (d.latent.key_value_rank > 0) {
        if (d.latent.value_dimension != d.head_dimension) a.value_dimension = d.latent.value_dimension;
        a.rotary_fraction = static_cast<double>(d.latent.rotary_dimension) / d.head_dimension;
    }
    attention.query_key_norm = d.query_key_norm_kind;
    attention.has_norm_parameters = d.query_key_norm_has_parameters;
    attention.has_norm_per_head = d.query_key_norm_is_per_head;
    attention.norm_epsilon = d.epsilon;
    attention.clips = d.clips;
    attention.has_qkv_bias = d.has_qkv_bias;
    attention.has_output_bias = d.has_attention_output_bias;
}

void describe_mixture(Attributes& a, const DecoderDescription& d) {
    const MixtureDescription& m = d.mixture;
    a.experts = m.experts;
    a.experts_per_token = m.experts_per_token;
    a.expert_hidden = m.ffn > 0 ? m.ffn : d.ffn;
    a.experts_are_gated = is_gated(d.activation);
    a.expert_activation = kind_of(d.activation);
    a.is_tanh_approximation = is_tanh_approximation(d.activation);
    a.capacity_factor = m.capacity_factor;
    a.auxiliary_loss = m.auxiliary_loss;
    a.router_has_bias = m.router_has_bias;
    a.experts_have_bias = m.experts_have_bias;
    a.has_sigmoid_scores = m.has_sigmoid_scores;
    a.has_plain_weights = m.has_plain_weights;
    a.routed_scale = m.routed_scale;
    a.expert_groups = m.expert_groups;
    a.chosen_groups = m.chosen_groups;
    a.activation_limit = m.activation_limit;
}

LayerRecipe recipe(const DecoderDescription& d, std::int64_t layer) {
    LayerRecipe r;
    r.is_first = layer == 0;
    describe_attention(r.attention, d, layer);
    r.attention.deviation = r.mlp.deviation = d.deviation;
    // GPT-2 (Radford et al. 2019, section 2.3) scales the layers that write to the residual stream by
    // 1/sqrt(their number).
    r.attention.output_deviation = r.mlp.output_deviation = d.deviation / std::sqrt(2.0 * d.layers);
    r.mlp.width = d.ffn;
    r.mlp.activation = d.activation;
    r.mlp.has_bias = d.has_mlp_bias;
    r.is_mixture = d.mixture.is_mixture(layer);
    if (!r.is_mixture) return r;
    describe_mixture(r.mixture, d);
    r.shared = r.mlp;
    r.shared.width = d.mixture.shared_ffn;
    r.has_shared_gate = d.mixture.has_shared_gate;
    return r;
}

// The expert of all tokens, times a sigmoid of the token where it has a gate.
TensorId shared_expert(GraphBuilder& builder, TensorId entered, const LayerRecipe& r) {
    builder.open("shared");
    TensorId x = feed_forward(builder, entered, r.shared);
    if (r.has_shared_gate) {
        LinearOptions gate;
        gate.has_bias = false;
        gate.has_partial_gradient = true;
        gate.deviation = r.shared.deviation;
        x = builder.elementwise("weighted", {x, builder.linear("gate", entered, 1, gate)}, true);
    }
    builder.close();
    return x;
}

TensorId feed_forward_or_mixture(GraphBuilder& builder, TensorId entered, const LayerRecipe& r) {
    if (!r.is_mixture) return feed_forward(builder, entered, r.mlp);
    const TensorId routed =
        builder.mixture_of_experts("mixture", entered, r.mixture, r.mlp.deviation, r.mlp.output_deviation);
    if (r.shared.width == 0) return routed;
    return builder.add("experts_sum", routed, shared_expert(builder, entered, r));
}

TensorId attend(GraphBuilder& builder, TensorId x, const DecoderDescription& d, const LayerRecipe& r) {
    if (d.latent.key_value_rank == 0) return self_attention(builder, builder.enter("enter", x), r.attention);
    return latent_attention(builder, latent_projections(builder, x, r.attention), r.attention, d.hidden);
}

TensorId sequential_layer(GraphBuilder& builder, TensorId x, const DecoderDescription& d,
                          const LayerRecipe& r) {
    const bool is_before = d.norm_place != NormPlace::behind, is_behind = d.norm_place != NormPlace::before;
    const bool skips_norm = r.is_first && !d.has_first_norm;
    const TensorId attention_input = is_before && !skips_norm ? norm(builder, "attention_norm", x, d) : x;
    builder.open("attention");
    TensorId branch = builder.exit("exit", attend(builder, attention_input, d, r));
    if (is_behind) branch = norm(builder, "attention_norm_behind", branch, d);
    branch = builder.dropout("dropout", branch, d.hidden_dropout);
    branch = scaled(builder, "scale", branch, d.residual_scale);
    builder.close();
    x = builder.add("attention_residual", branch, x);

    const TensorId mlp_input = is_before ? norm(builder, "mlp_norm", x, d) : x;
    builder.open("mlp");
    branch = builder.exit("exit", feed_forward_or_mixture(builder, builder.enter("enter", mlp_input), r));
    if (is_behind) branch = norm(builder, "mlp_norm_behind", branch, d);
    branch = builder.dropout("dropout", branch, d.hidden_dropout);
    branch = scaled(builder, "scale", branch, d.residual_scale);
    builder.close();
    return builder.add("mlp_residual", branch, x);
}

// x + attention(norm(x)) + mlp(norm'(x)): each branch has its own region and its own all-reduce of gradients.
// Without dropout the partial sums of both branches are added before one common exit (GPT-NeoX,
// "gpt_j_residual": one reduction instead of two).
TensorId parallel_layer(GraphBuilder& builder, TensorId x, const DecoderDescription& d,
                        const LayerRecipe& r) {
    const TensorId attention_input = norm(builder, "attention_norm", x, d);
    const TensorId mlp_input = d.shares_norm ? attention_input : norm(builder, "mlp_norm", x, d);
    const bool has_common_exit = d.hidden_dropout == 0;

    builder.open("attention");
    const TensorId entered = builder.enter("enter", attention_input);
    TensorId attention = self_attention(builder, entered, r.attention);
    if (!has_common_exit)
        attention = builder.dropout("dropout", builder.exit("exit", attention), d.hidden_dropout);
    builder.close();

    builder.open("mlp");
    const bool has_common_enter = d.shares_norm && has_common_exit;
    TensorId mlp =
        feed_forward_or_mixture(builder, has_common_enter ? entered : builder.enter("enter", mlp_input), r);
    if (!has_common_exit) mlp = builder.dropout("dropout", builder.exit("exit", mlp), d.hidden_dropout);
    builder.close();

    TensorId branches = builder.add("branches", attention, mlp);
    if (has_common_exit) branches = builder.exit("exit", branches);
    return builder.add("residual", branches, x);
}

TensorId layer(GraphBuilder& builder, TensorId x, const DecoderDescription& d, std::int64_t index) {
    const LayerRecipe r = recipe(d, index);
    return d.is_parallel_residual ? parallel_layer(builder, x, d, r) : sequential_layer(builder, x, d, r);
}

// One module of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): what came so far and the
// embedding of a later token, each normalised, projected together, through one more layer.
TensorId predict_further(GraphBuilder& builder, TensorId x, ParameterId table, const DecoderDescription& d,
                         std::int64_t depth) {
    const std::string index = std::to_string(depth);
    builder.begin_unit("prediction." + index);
    builder.open(index);
    const TensorId ids = builder.input("ids", {d.sequence_length}, core::DataType::int64);
    const TensorId later = norm(builder, "token_norm", embed_tokens(builder, ids, table), d);
    const TensorId both =
        builder.join_columns("join", {norm(builder, "norm", x, d), later}, 2 * d.hidden, TensorSplit::whole);
    LinearOptions projection;
    projection.has_bias = false;
    projection.deviation = d.deviation;
    x = layer(builder, builder.linear("projection", both, d.hidden, projection), d, d.layers - 1);
    builder.close();
    return x;
}

// Logits and loss of one position further each; all share the weight of the first.
class Head {
public:
    Head(GraphBuilder& builder, const DecoderDescription& d, ParameterId table) : builder_(builder), d_(d) {
        if (d.is_tied) weight_ = table;
    }

    TensorId loss(TensorId x) {
        if (d_.has_head_transform) {
            LinearOptions dense;
            dense.has_bias = d_.head_transform_has_bias;
            dense.deviation = d_.deviation;
            x = activate(builder_, "activation", builder_.linear("transform", x, d_.hidden, dense),
                         plain(d_.activation));
        }
        x = norm(builder_, d_.has_head_transform ? "transform_norm" : "norm", x, d_);
        LinearOptions head;
        head.split = LinearOptions::Split::column;
        head.has_bias = d_.has_head_bias;
        head.deviation = d_.deviation;
        head.tied_weight = weight_;
        TensorId logits = builder_.linear("logits", builder_.enter("enter", x), d_.vocabulary, head);
        weight_ = builder_.last_operator().parameters[0];
        logits = scaled(builder_, "scale", logits, d_.logit_scale);
        if (d_.logit_soft_cap) logits = builder_.elementwise("soft_cap", {logits}, true);
        return builder_.loss(logits, builder_.input("labels", {d_.sequence_length}, core::DataType::int64));
    }

private:
    static Activation plain(Activation activation) {
        switch (activation) {
            case Activation::gated_silu: return Activation::silu;
            case Activation::gated_gelu: return Activation::gelu;
            case Activation::gated_gelu_tanh: return Activation::gelu_tanh;
            case Activation::gelu:
            case Activation::gelu_tanh:
            case Activation::relu:
            case Activation::silu: return activation;
        }
        throw core::InternalError("an activation outside its enumeration");
    }

    GraphBuilder& builder_;
    const DecoderDescription& d_;
    ParameterId weight_;
};

TensorId embed(GraphBuilder& builder, ParameterId& table, const DecoderDescription& d) {
    builder.begin_unit("embedding");
    builder.open("embedding");
    const TensorId ids = builder.input("ids", {d.sequence_length}, core::DataType::int64);
    table = token_table(builder, d.vocabulary, d.hidden, d.deviation);
    TensorId x = scaled(builder, "scale", embed_tokens(builder, ids, table), d.embedding_scale);
    if (d.encoding == PositionEncoding::learned)
        x = builder.position_embedding("positions", x, d.positions, d.position_offset, d.deviation);
    if (d.has_embedding_norm) x = norm(builder, "norm", x, d);
    x = builder.dropout("dropout", x, d.embedding_dropout);
    builder.close();
    return x;
}

}  // namespace

bool MixtureDescription::is_mixture(std::int64_t layer) const {
    if (experts == 0) return false;
    if (!layers.empty()) return contains(layers, layer);
    return layer >= dense_layers_first && layer % interval == interval - 1;
}

ModelGraph build_decoder(const DecoderDescription& d) {
    GraphBuilder builder(d.name, d.family);
    ParameterId table;
    TensorId x = embed(builder, table, d);

    builder.open("layers");
    for (std::int64_t i = 0; i < d.layers; ++i) {
        const std::string index = std::to_string(i);
        builder.begin_unit("layers." + index);
        builder.open(index);
        x = layer(builder, x, d, i);
        builder.close();
    }
    builder.close();
    std::vector<TensorId> outputs{x};
    if (d.prediction_layers > 0) {
        builder.open("prediction");
        for (std::int64_t depth = 0; depth < d.prediction_layers; ++depth)
            outputs.push_back(predict_further(builder, outputs.back(), table, d, depth));
        builder.close();
    }

    builder.begin_unit("head");
    builder.open("head");
    Head head(builder, d, table);
    // A norm before the transform closes the stack; without a transform the head's own norm does.
    if (d.has_head_transform) outputs[0] = norm(builder, "norm", outputs[0], d);
    TensorId loss = head.loss(outputs[0]);
    for (std::size_t depth = 1; depth < outputs.size(); ++depth) {
        const std::string index = std::to_string(depth - 1);
        builder.end_region();
        builder.open("prediction" + index);
        const TensorId further = head.loss(outputs[depth]);
        builder.end_region();
        builder.close();
        loss = builder.add("loss" + index, loss, further);
    }
    builder.close();

    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
