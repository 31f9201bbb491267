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

TensorId self_attention(GraphBuilder& builder, TensorId entered, const AttentionLayer& layer) {
    const Attributes& a = layer.attributes;
    const std::int64_t hidden = builder.shape(entered)[1], query = a.heads * a.head_dimension,
                       key = a.kv_heads * a.head_dimension;
    LinearOptions packed = column(layer.has_region, layer.has_qkv_bias, layer.deviation);
    packed.split_blocks = 3;
    if (query != key) packed.split_sections = {query, key, key};
    const TensorId qkv = builder.linear("qkv", entered, query + 2 * key, packed);
    const TensorId context = builder.attention("core", qkv, {}, a, layer.relative_bias);
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
        builder.linear("key_value", entered_memory, 2 * a.kv_heads * a.head_dimension, packed);
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
