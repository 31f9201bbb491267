#include "model/builder/vision/clip.h"

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

using Tower = ClipDescription::Tower;

constexpr double position_deviation = 0.02;

TensorId linear_without_bias(GraphBuilder& builder, const std::string& name, TensorId x,
                             std::int64_t outputs) {
    LinearOptions options;
    options.has_bias = false;
    return builder.linear(name, x, outputs, options);
}

TensorId layer(GraphBuilder& builder, TensorId x, const Tower& tower, bool is_causal) {
    AttentionLayer attention;
    Attributes& a = attention.attributes;
    a.heads = a.kv_heads = tower.heads;
    a.head_dimension = tower.hidden / tower.heads;
    a.is_causal = is_causal;
    a.probability = tower.attention_dropout;
    attention.has_region = false;
    TensorId branch = builder.layer_norm("attention_norm", x, tower.epsilon);
    builder.open("attention");
    branch = self_attention(builder, branch, attention);
    builder.close();
    x = builder.add("attention_residual", branch, x);
    branch = builder.layer_norm("mlp_norm", x, tower.epsilon);
    builder.open("mlp");
    branch = builder.linear("up", branch, tower.ffn, {});
    branch = tower.has_quick_gelu ? builder.elementwise("activation", {branch}, true)
                                  : builder.unary(OperatorKind::gelu, "activation", branch);
    branch = builder.linear("down", branch, tower.hidden, {});
    builder.close();
    return builder.add("mlp_residual", branch, x);
}

TensorId layers(GraphBuilder& builder, TensorId x, const Tower& tower, const std::string& name,
                bool is_causal) {
    for (std::int64_t index = 0; index < tower.layers; ++index) {
        builder.begin_unit(name + ".layers." + std::to_string(index));
        builder.open("layers." + std::to_string(index));
        x = layer(builder, x, tower, is_causal);
        builder.close();
    }
    return x;
}

TensorId image_row(GraphBuilder& builder, const ClipDescription& d) {
    builder.begin_unit("vision.embedding");
    builder.open("vision");
    builder.open("embedding");
    const TensorId images =
        builder.input("images", {d.channels, d.image_size, d.image_size}, core::DataType::fp32);
    TensorId x = builder.conv2d("patches", images, d.vision.hidden, d.patch, d.patch, 0, false);
    x = builder.reshape(OperatorKind::transpose, "tokens", x);
    x = builder.prepend_token("class_token", x);
    x = builder.position_embedding("positions", x, builder.shape(x)[0], 0, position_deviation);
    x = builder.layer_norm("norm", x, d.vision.epsilon);
    builder.close();
    x = layers(builder, x, d.vision, "vision", false);
    x = builder.reshape(OperatorKind::select_first_token, "pooled", x);
    x = builder.layer_norm("norm", x, d.vision.epsilon);
    x = linear_without_bias(builder, "projection", x, d.projection);
    builder.close();
    return x;
}

TensorId text_row(GraphBuilder& builder, const ClipDescription& d) {
    builder.begin_unit("text.embedding");
    builder.open("text");
    builder.open("embedding");
    const TensorId ids = builder.input("ids", {d.sequence_length}, core::DataType::int64);
    Parameter table;
    table.shape = {d.vocabulary, d.text.hidden};
    TensorId x = builder.embedding("tokens", ids, builder.parameter("tokens.weight", std::move(table)));
    x = builder.position_embedding("positions", x, d.positions, 0, position_deviation);
    builder.close();
    x = layers(builder, x, d.text, "text", true);
    builder.begin_unit("head");
    x = builder.layer_norm("norm", x, d.text.epsilon);
    // The row of the text's end.
    x = builder.select_positions("pooled", x, builder.input("end", {1}, core::DataType::int64));
    x = linear_without_bias(builder, "projection", x, d.projection);
    builder.close();
    return x;
}

}  // namespace

ModelGraph build_clip(const ClipDescription& d) {
    GraphBuilder builder(d.name, d.family);
    const TensorId image = image_row(builder, d);
    const TensorId text = text_row(builder, d);
    builder.open("head");
    const TensorId image_unit = builder.elementwise("image_unit_length", {image}, true);
    const TensorId text_unit = builder.elementwise("text_unit_length", {text}, true);
    Attributes similarity;
    similarity.product = {1, 1, 1, d.projection};
    TensorId logits = builder.general(OperatorKind::matrix_product, "similarity", {text_unit, image_unit}, {},
                                      {1, 1}, similarity, true, core::DataType::fp32);
    Parameter scale;
    scale.shape = {1};
    scale.initialization = Initialization::ones;
    scale.decays = false;
    Attributes scaling;
    scaling.saves_inputs = true;
    logits = builder.general(OperatorKind::elementwise, "scaled", {logits},
                             {builder.parameter("scale", std::move(scale))}, {1, 1}, scaling, true,
                             core::DataType::fp32);
    builder.loss(logits, builder.input("labels", {1}, core::DataType::int64));
    builder.close();
    builder.graph().image_size = d.image_size;
    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
