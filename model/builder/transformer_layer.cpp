#include "model/builder/transformer_layer.h"

namespace model {

namespace {

using Split = LinearOptions::Split;

LinearOptions column(bool has_region, bool has_bias, double deviation) {
    LinearOptions options;
    options.split = has_region ? Split::column : Split::none;
    options.has_bias = has_bias;
    options.deviation = deviation;
    return options;
}

LinearOptions row(bool has_region, bool has_bias, double deviation) {
    LinearOptions options = column(has_region, has_bias, deviation);
    if (has_region) options.split = Split::row;
    return options;
}

}  // namespace

bool is_gated(Activation activation) {
    return activation == Activation::gated_silu || activation == Activation::gated_gelu ||
           activation == Activation::gated_gelu_tanh;
}

OperatorKind kind_of(Activation activation) {
    switch (activation) {
        case Activation::gelu:
        case Activation::gelu_tanh: return OperatorKind::gelu;
        case Activation::relu: return OperatorKind::relu;
        case Activation::silu: return OperatorKind::silu;
        case Activation::gated_silu: return OperatorKind::gated_silu;
        case Activation::gated_gelu:
        case Activation::gated_gelu_tanh: return OperatorKind::gated_gelu;
    }
    return OperatorKind::gelu;
}

bool is_tanh_approximation(Activation activation) {
    return activation == Activation::gelu_tanh || activation == Activation::gated_gelu_tanh;
}

TensorId activate(GraphBuilder& builder, const std::string& name, TensorId x, Activation activation) {
    return builder.unary(kind_of(activation), name, x, is_tanh_approximation(activation));
}

// Scales (and shifts) of the norms of queries and keys, then sinks.
std::vector<ParameterId> norms_and_sinks(GraphBuilder& builder, const AttentionLayer& layer) {
    const Attributes& a = layer.attributes;
    std::vector<ParameterId> parameters;
    const auto add = [&](const std::string& name, std::int64_t extent, bool is_split, Initialization start) {
        Parameter parameter;
        parameter.shape = {extent};
        parameter.initialization = start;
        parameter.deviation = 0;
        parameter.decays = false;
        if (is_split) parameter.split_dimension = 0;
        else parameter.has_partial_gradient = layer.has_region;
        parameters.push_back(builder.parameter(name, std::move(parameter)));
    };
    if (a.query_key_norm != QueryKeyNorm::none && layer.has_norm_parameters) {
        const bool is_wide = layer.has_norm_per_head || a.query_key_norm == QueryKeyNorm::all_heads;
        const std::int64_t query = a.head_dimension * (is_wide ? a.heads : 1),
                           key = a.head_dimension * (is_wide ? a.kv_heads : 1);
        const bool is_split = is_wide && layer.has_region;
        const bool has_shift = layer.query_key_norm == NormKind::layer_norm;
        add("query_norm.scale", query, is_split, Initialization::ones);
        if (has_shift) add("query_norm.shift", query, is_split, Initialization::zeros);
        add("key_norm.scale", key, is_split, Initialization::ones);
        if (has_shift) add("key_norm.shift", key, is_split, Initialization::zeros);
    }
    if (a.has_sinks) add("sinks", a.heads, layer.has_region, Initialization::zeros);
    return parameters;
}

LatentTensors latent_projections(GraphBuilder& builder, TensorId x, const AttentionLayer& layer) {
    const LatentAttention& l = layer.latent;
    LinearOptions down = column(false, layer.latent.has_bias, layer.deviation);
    LatentTensors tensors{x, {}, {}};
    if (l.query_rank > 0)
        tensors.query = builder.rms_norm("query_norm", builder.linear("query_down", x, l.query_rank, down),
                                         layer.norm_epsilon);
    const TensorId both = builder.linear("key_value_down", x, l.key_value_rank + l.rotary_dimension, down);
    tensors.key_value = builder.rms_norm(
        "key_value_norm", builder.columns("key_value_latent", both, l.key_value_rank), layer.norm_epsilon);
    tensors.rotary_key = builder.columns("rotary_key", both, l.rotary_dimension);
    return tensors;
}

TensorId latent_attention(GraphBuilder& builder, const LatentTensors& latent, const AttentionLayer& layer,
                          std::int64_t hidden) {
    const Attributes& a = layer.attributes;
    const LinearOptions up = column(layer.has_region, false, layer.deviation);
    const std::int64_t query_columns = a.heads * a.head_dimension,
                       value_columns = a.heads * value_dimension(a);
    const TensorId query =
        builder.linear("query_up", builder.enter("query_enter", latent.query), query_columns, up);
    const TensorId key_value =
        builder.linear("key_value_up", builder.enter("key_value_enter", latent.key_value),
                       query_columns - a.heads * layer.latent.rotary_dimension + value_columns, up);
    // Every head's keys end with the same rotated part.
    const TensorId packed =
        builder.join_columns("join", {query, key_value, builder.enter("rotary_key_enter", latent.rotary_key)},
                             2 * query_columns + value_columns, TensorSplit::split);
    const TensorId context = builder.attention("core", packed, {}, a, {}, norms_and_sinks(builder, layer));
    return builder.linear("output", context, hidden,
                          row(layer.has_region, layer.has_output_bias, layer.output_deviation));
}

namespace {

// Keys without biases beside values with theirs, behind what is `joined` already.
TensorId keys_without_bias(GraphBuilder& builder, TensorId read, const AttentionLayer& layer,
                           std::vector<TensorId> joined) {
    const std::int64_t width = layer.attributes.kv_heads * layer.attributes.head_dimension;
    joined.push_back(builder.linear("key", read, width, column(layer.has_region, false, layer.deviation)));
    joined.push_back(builder.linear("value", read, width, column(layer.has_region, true, layer.deviation)));
    std::int64_t columns = 0;
    for (const TensorId part : joined) columns += builder.shape(part)[1];
    return builder.join_columns("join", std::move(joined), columns,
                                layer.has_region ? TensorSplit::split : TensorSplit::whole);
}

TensorId packed_projections(GraphBuilder& builder, TensorId entered, const AttentionLayer& layer) {
    const Attributes& a = layer.attributes;
    const std::int64_t query = a.heads * a.head_dimension, key = a.kv_heads * a.head_dimension;
    LinearOptions packed = column(layer.has_region, layer.has_qkv_bias, layer.deviation);
    if (layer.has_qkv_bias && !layer.has_key_bias)
        return keys_without_bias(builder, entered, layer, {builder.linear("query", entered, query, packed)});
    packed.split_blocks = 3;
    if (query != key) packed.split_sections = {query, key, key};
    return builder.linear("qkv", entered, query + 2 * key, packed);
}

}  // namespace

TensorId self_attention(GraphBuilder& builder, TensorId entered, const AttentionLayer& layer) {
    const Attributes& a = layer.attributes;
    const std::int64_t hidden = builder.shape(entered)[1];
    TensorId qkv = packed_projections(builder, entered, layer);
    if (layer.clips) qkv = builder.elementwise("clip", {qkv}, true);
    const TensorId context =
        builder.attention("core", qkv, {}, a, layer.relative_bias, norms_and_sinks(builder, layer));
    return builder.linear("output", context, hidden,
                          row(layer.has_region, layer.has_output_bias, layer.output_deviation));
}

TensorId cross_attention(GraphBuilder& builder, TensorId entered, TensorId entered_memory,
                         const AttentionLayer& layer) {
    const Attributes& a = layer.attributes;
    const std::int64_t hidden = builder.shape(entered)[1];
    LinearOptions packed = column(layer.has_region, layer.has_qkv_bias, layer.deviation);
    const TensorId query = builder.linear("query", entered, a.heads * a.head_dimension, packed);
    packed.split_blocks = 2;
    const TensorId key_value =
        layer.has_qkv_bias && !layer.has_key_bias
            ? keys_without_bias(builder, entered_memory, layer, {})
            : builder.linear("key_value", entered_memory, 2 * a.kv_heads * a.head_dimension, packed);
    const TensorId context = builder.attention("core", query, key_value, a);
    return builder.linear("output", context, hidden,
                          row(layer.has_region, layer.has_output_bias, layer.output_deviation));
}

TensorId feed_forward(GraphBuilder& builder, TensorId entered, const FeedForward& layer) {
    const std::int64_t hidden = builder.shape(entered).back();
    LinearOptions up = column(layer.has_region, layer.has_bias, layer.deviation);
    if (is_gated(layer.activation)) up.split_blocks = 2;
    TensorId x = builder.linear(is_gated(layer.activation) ? "gate_up" : "up", entered,
                                layer.width * (is_gated(layer.activation) ? 2 : 1), up);
    x = activate(builder, "activation", x, layer.activation);
    x = builder.dropout("activation_dropout", x, layer.dropout);
    return builder.linear("down", x, hidden, row(layer.has_region, layer.has_bias, layer.output_deviation));
}

ParameterId token_table(GraphBuilder& builder, std::int64_t vocabulary, std::int64_t hidden,
                        double deviation) {
    Parameter table;
    table.shape = {vocabulary, hidden};
    table.split_dimension = 0;
    table.deviation = deviation;
    return builder.parameter("tokens.weight", std::move(table));
}

TensorId embed_tokens(GraphBuilder& builder, TensorId ids, ParameterId table) {
    builder.begin_region();
    const TensorId partial = builder.embedding("tokens", ids, table);
    return builder.exit("tokens_exit", partial);
}

}  // namespace model
