#include "model/builder/vision/vision_transformer.h"

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

// Of the initial values of learned positions.
constexpr double position_deviation = 0.02;

TensorId image(GraphBuilder& builder, std::int64_t channels, std::int64_t size) {
    return builder.input("images", {channels, size, size}, core::DataType::fp32);
}

// x + attention(norm(x)), then x + mlp(norm(x)).
TensorId encoder_layer(GraphBuilder& builder, TensorId x, const AttentionLayer& attention,
                       const FeedForward& mlp, double epsilon, double dropout) {
    TensorId branch = builder.layer_norm("attention_norm", x, epsilon);
    builder.open("attention");
    branch = builder.dropout("dropout", self_attention(builder, branch, attention), dropout);
    builder.close();
    x = builder.add("attention_residual", branch, x);
    branch = builder.layer_norm("mlp_norm", x, epsilon);
    builder.open("mlp");
    branch = builder.dropout("dropout", feed_forward(builder, branch, mlp), dropout);
    builder.close();
    return builder.add("mlp_residual", branch, x);
}

void classify(GraphBuilder& builder, TensorId row, std::int64_t classes) {
    const TensorId logits = builder.linear("logits", row, classes, {});
    builder.loss(logits, builder.input("labels", {1}, core::DataType::int64));
}

// The end of both models: a norm, one token from all, a class.
template <class Description>
ModelGraph finish_classifier(GraphBuilder& builder, TensorId x, OperatorKind pooling, const char* pooled,
                             const Description& d) {
    builder.begin_unit("head");
    builder.open("head");
    x = builder.layer_norm("norm", x, d.epsilon);
    classify(builder, builder.reshape(pooling, pooled, x), d.classes);
    builder.close();
    builder.graph().image_size = d.image_size;
    return builder.finish();
}

}  // namespace

ModelGraph build_vit(const VitDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("embedding");
    builder.open("embedding");
    TensorId x = builder.conv2d("patches", image(builder, d.channels, d.image_size), d.hidden, d.patch,
                                d.patch, 0, true);
    x = builder.reshape(OperatorKind::transpose, "tokens", x);
    if (d.leading_tokens == 2) x = builder.prepend_token("distillation_token", x);
    x = builder.prepend_token("class_token", x);
    x = builder.position_embedding("positions", x, builder.shape(x)[0], 0, position_deviation);
    x = builder.dropout("dropout", x, d.dropout);
    builder.close();

    AttentionLayer attention;
    attention.attributes.heads = attention.attributes.kv_heads = d.heads;
    attention.attributes.head_dimension = d.hidden / d.heads;
    attention.attributes.probability = d.attention_dropout;
    attention.has_qkv_bias = d.has_qkv_bias;
    attention.has_region = false;
    FeedForward mlp;
    mlp.width = d.ffn;
    mlp.dropout = d.dropout;
    mlp.has_region = false;
    builder.open("layers");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit("layers." + index);
        builder.open(index);
        x = encoder_layer(builder, x, attention, mlp, d.epsilon, d.dropout);
        builder.close();
    }
    builder.close();

    return finish_classifier(builder, x, OperatorKind::select_first_token, "class_token", d);
}

ModelGraph build_swin(const SwinDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("embedding");
    builder.open("embedding");
    TensorId x = builder.conv2d("patches", image(builder, d.channels, d.image_size), d.hidden, d.patch,
                                d.patch, 0, true);
    x = builder.reshape(OperatorKind::transpose, "tokens", x);
    x = builder.layer_norm("norm", x, d.epsilon);
    builder.close();

    std::int64_t hidden = d.hidden, side = d.image_size / d.patch;
    builder.open("stages");
    for (std::size_t stage = 0; stage < d.depths.size(); ++stage) {
        builder.open(std::to_string(stage));
        for (std::int64_t layer = 0; layer < d.depths[stage]; ++layer) {
            const std::string index = std::to_string(layer);
            builder.begin_unit("stages." + std::to_string(stage) + "." + index);
            if (layer == 0 && stage > 0) {
                builder.open("merge");
                x = builder.reshape(OperatorKind::merge_patches, "patches", x);
                x = builder.layer_norm("norm", x, d.epsilon);
                LinearOptions reduction;
                reduction.has_bias = false;
                hidden *= 2;
                side /= 2;
                x = builder.linear("reduction", x, hidden, reduction);
                builder.close();
            }
            builder.open(index);
            AttentionLayer attention;
            Attributes& a = attention.attributes;
            a.heads = a.kv_heads = d.heads[stage];
            a.head_dimension = hidden / d.heads[stage];
            a.has_relative_bias = true;
            // A window as large as the image is neither cut nor shifted (the last stage).
            a.local_window = d.window * d.window;
            a.is_shifted = layer % 2 == 1 && side > d.window;
            Parameter bias;
            bias.shape = {(2 * d.window - 1) * (2 * d.window - 1), d.heads[stage]};
            attention.relative_bias = builder.parameter("attention.relative_bias.weight", bias);
            attention.has_region = false;
            FeedForward mlp;
            mlp.width = d.mlp_ratio * hidden;
            mlp.has_region = false;
            x = encoder_layer(builder, x, attention, mlp, d.epsilon, 0);
            builder.close();
        }
        builder.close();
    }
    builder.close();

    return finish_classifier(builder, x, OperatorKind::average_tokens, "average", d);
}

}  // namespace model
