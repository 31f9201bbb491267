#include "model/builder/vision/convolutional.h"

#include "core/errors.h"
#include "model/builder/graph_builder.h"

namespace model {

namespace {

std::vector<std::int64_t> blocks_per_stage(std::int64_t depth) {
    switch (depth) {
        case 18: return {2, 2, 2, 2};
        case 34:
        case 50: return {3, 4, 6, 3};
        case 101: return {3, 4, 23, 3};
        case 152: return {3, 8, 36, 3};
    }
    core::require(false, "the reader admits only depths that exist");
    return {};
}

TensorId conv_norm(GraphBuilder& builder, const std::string& name, TensorId x, std::int64_t channels,
                   std::int64_t kernel, std::int64_t stride) {
    builder.open(name);
    x = builder.conv2d("conv", x, channels, kernel, stride, kernel / 2, false);
    x = builder.batch_norm("norm", x);
    builder.close();
    return x;
}

TensorId relu(GraphBuilder& builder, const std::string& name, TensorId x) {
    return builder.unary(OperatorKind::relu, name, x);
}

TensorId residual_block(GraphBuilder& builder, TensorId x, std::int64_t planes, std::int64_t stride,
                        const ResnetDescription& d) {
    const bool is_bottleneck = d.depth >= 50;
    const std::int64_t outputs = is_bottleneck ? 4 * planes : planes;
    TensorId branch;
    if (is_bottleneck) {
        // torchvision strides in the 3x3 convolution (ResNet v1.5), the paper in the first 1x1.
        const std::int64_t reduced = d.widens_reduction ? planes * d.width_factor : planes;
        branch = relu(builder, "relu1", conv_norm(builder, "conv1", x, reduced, 1, 1));
        branch =
            relu(builder, "relu2", conv_norm(builder, "conv2", branch, planes * d.width_factor, 3, stride));
        branch = conv_norm(builder, "conv3", branch, outputs, 1, 1);
    } else {
        branch = relu(builder, "relu1", conv_norm(builder, "conv1", x, planes, 3, stride));
        branch = conv_norm(builder, "conv2", branch, planes, 3, 1);
    }
    const bool changes_shape = stride != 1 || builder.shape(x)[0] != outputs;
    const TensorId shortcut = changes_shape ? conv_norm(builder, "shortcut", x, outputs, 1, stride) : x;
    return relu(builder, "relu", builder.add("residual", branch, shortcut));
}

}  // namespace

ModelGraph build_resnet(const ResnetDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("stem");
    builder.open("stem");
    TensorId x = builder.input("images", {d.channels, d.image_size, d.image_size}, core::DataType::fp32);
    if (d.has_small_stem) {
        x = relu(builder, "relu", conv_norm(builder, "conv", x, d.base_channels, 3, 1));
    } else {
        x = relu(builder, "relu", conv_norm(builder, "conv", x, d.base_channels, 7, 2));
        x = builder.pool(OperatorKind::max_pool, "pool", x, 3, 2, 1);
    }
    builder.close();

    const std::vector<std::int64_t> blocks = blocks_per_stage(d.depth);
    builder.open("stages");
    for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
        builder.open(std::to_string(stage));
        for (std::int64_t block = 0; block < blocks[stage]; ++block) {
            builder.begin_unit("stages." + std::to_string(stage) + "." + std::to_string(block));
            builder.open(std::to_string(block));
            x = residual_block(builder, x, d.base_channels << stage, stage > 0 && block == 0 ? 2 : 1, d);
            builder.close();
        }
        builder.close();
    }
    builder.close();

    builder.begin_unit("head");
    builder.open("head");
    x = builder.pool(OperatorKind::average_pool, "pool", x, builder.shape(x)[1], 1, 0);
    x = builder.reshape(OperatorKind::flatten, "flatten", x);
    const TensorId logits = builder.linear("logits", x, d.classes, {});
    builder.loss(logits, builder.input("labels", {1}, core::DataType::int64));
    builder.close();
    builder.graph().image_size = d.image_size;
    return builder.finish();
}

ModelGraph build_convnet(const ConvnetDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("stem");
    TensorId x = builder.input("images", {d.channels, d.image_size, d.image_size}, core::DataType::fp32);
    for (std::size_t i = 0; i < d.convolutions.size(); ++i) {
        const std::string name = "conv" + std::to_string(i + 1);
        if (i > 0) builder.begin_unit(name);
        builder.open(name);
        x = relu(builder, "relu", builder.conv2d("conv", x, d.convolutions[i], d.kernel, 1, 0, true));
        builder.close();
    }
    for (std::size_t i = 0; i < d.dense.size(); ++i) {
        const std::string name = "dense" + std::to_string(i + 1);
        builder.begin_unit(name);
        builder.open(name);
        if (i == 0) x = builder.reshape(OperatorKind::flatten, "flatten", x);
        x = relu(builder, "relu", builder.linear("linear", x, d.dense[i], {}));
        builder.close();
    }
    builder.begin_unit("head");
    builder.open("head");
    if (d.dense.empty()) x = builder.reshape(OperatorKind::flatten, "flatten", x);
    const TensorId logits = builder.linear("logits", x, d.classes, {});
    builder.loss(logits, builder.input("labels", {1}, core::DataType::int64));
    builder.close();
    builder.graph().image_size = d.image_size;
    return builder.finish();
}

}  // namespace model
