#include "model/builder/decoder.h"

#include <cmath>

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

TensorId norm(GraphBuilder& builder, const std::string& name, TensorId x, const DecoderDescription& d) {
    if (d.norm == NormKind::rms_norm) return builder.rms_norm(name, x, d.epsilon);
    return builder.layer_norm(name, x, d.epsilon, d.norm == NormKind::layer_norm);
}

struct LayerRecipe {
    AttentionLayer attention;
    FeedForward mlp;
    Attributes mixture;
    bool is_mixture = false;
};

LayerRecipe recipe(const DecoderDescription& d, std::int64_t layer) {
    LayerRecipe r;
    Attributes& a = r.attention.attributes;
    a.heads = d.heads;
    a.kv_heads = d.kv_heads;
    a.head_dimension = d.head_dimension;
    a.is_causal = true;
    a.is_rotary = d.encoding == PositionEncoding::rotary;
    a.rotary_fraction = d.rotary_fraction;
    a.rotary_base = d.rotary_base;
    a.has_alibi = d.encoding == PositionEncoding::alibi;
    a.probability = d.attention_dropout;
    a.window = layer >= d.first_window_layer ? d.window : 0;
    r.attention.has_qkv_bias = d.has_qkv_bias;
    r.attention.has_output_bias = d.has_attention_output_bias;
    r.attention.deviation = r.mlp.deviation = d.deviation;
    // GPT-2 (Radford et al. 2019, section 2.3) scales the layers that write to the residual stream by
    // 1/sqrt(their number).
    r.attention.output_deviation = r.mlp.output_deviation = d.deviation / std::sqrt(2.0 * d.layers);
    r.mlp.width = d.ffn;
    r.mlp.activation = d.activation;
    r.mlp.has_bias = d.has_mlp_bias;
    r.is_mixture = d.experts > 0 && layer % d.expert_interval == d.expert_interval - 1;
    r.mixture.experts = d.experts;
    r.mixture.experts_per_token = d.experts_per_token;
    r.mixture.expert_hidden = d.ffn;
    r.mixture.experts_are_gated = is_gated(d.activation);
    r.mixture.expert_activation = kind_of(d.activation);
    r.mixture.is_tanh_approximation = is_tanh_approximation(d.activation);
    r.mixture.capacity_factor = d.capacity_factor;
    r.mixture.auxiliary_loss = d.auxiliary_loss;
    return r;
}

TensorId feed_forward_or_mixture(GraphBuilder& builder, TensorId entered, const LayerRecipe& r) {
    if (!r.is_mixture) return feed_forward(builder, entered, r.mlp);
    return builder.mixture_of_experts("mixture", entered, r.mixture, r.mlp.deviation, r.mlp.output_deviation);
}

TensorId sequential_layer(GraphBuilder& builder, TensorId x, const DecoderDescription& d,
                          const LayerRecipe& r) {
    const TensorId attention_input = norm(builder, "attention_norm", x, d);
    builder.open("attention");
    TensorId branch =
        builder.exit("exit", self_attention(builder, builder.enter("enter", attention_input), r.attention));
    branch = builder.dropout("dropout", branch, d.hidden_dropout);
    builder.close();
    x = builder.add("attention_residual", branch, x);

    const TensorId mlp_input = norm(builder, "mlp_norm", x, d);
    builder.open("mlp");
    branch = builder.exit("exit", feed_forward_or_mixture(builder, builder.enter("enter", mlp_input), r));
    branch = builder.dropout("dropout", branch, d.hidden_dropout);
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

}  // namespace

ModelGraph build_decoder(const DecoderDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("embedding");
    builder.open("embedding");
    const TensorId ids = builder.input("ids", {d.sequence_length}, core::DataType::int64);
    const ParameterId table = token_table(builder, d.vocabulary, d.hidden, d.deviation);
    TensorId x = embed_tokens(builder, ids, table);
    if (d.encoding == PositionEncoding::learned)
        x = builder.position_embedding("positions", x, d.positions, d.position_offset, d.deviation);
    if (d.has_embedding_norm) x = norm(builder, "norm", x, d);
    x = builder.dropout("dropout", x, d.embedding_dropout);
    builder.close();

    builder.open("layers");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit("layers." + index);
        builder.open(index);
        const LayerRecipe r = recipe(d, layer);
        x = d.is_parallel_residual ? parallel_layer(builder, x, d, r) : sequential_layer(builder, x, d, r);
        builder.close();
    }
    builder.close();

    builder.begin_unit("head");
    builder.open("head");
    x = norm(builder, "norm", x, d);
    LinearOptions head;
    head.split = LinearOptions::Split::column;
    head.has_bias = d.has_head_bias;
    head.deviation = d.deviation;
    if (d.is_tied) head.tied_weight = table;
    const TensorId logits = builder.linear("logits", builder.enter("enter", x), d.vocabulary, head);
    const TensorId labels = builder.input("labels", {d.sequence_length}, core::DataType::int64);
    builder.loss(logits, labels);
    builder.close();

    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
