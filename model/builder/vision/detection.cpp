// Operations that the graph has no operator for are written with the nearest operators of the same arithmetic
// and bytes: regions are laid out as one mosaic image (RoIAlign is a pooling to as many cells, the box head's
// first layer a convolution over whole regions), upsampling in the pyramid is left out, and matching,
// sampling and non-maximum suppression appear as launches without work (ModelGraph::launches_per_sample).
#include "model/builder/vision/detection.h"

#include <cmath>
#include <vector>

#include "model/builder/graph_builder.h"

namespace model {

namespace {

class Backbone {
public:
    Backbone(GraphBuilder& builder, bool has_frozen_norm)
        : builder_(builder), has_frozen_norm_(has_frozen_norm) {}

    TensorId conv_norm(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                       std::int64_t stride) {
        builder_.open(name);
        x = builder_.conv2d("conv", x, channels, kernel, stride, kernel / 2, false);
        x = builder_.batch_norm("norm", x);
        if (has_frozen_norm_) builder_.last_operator().attributes.has_fixed_statistics = true;
        builder_.close();
        return x;
    }
    TensorId relu(const std::string& name, TensorId x) { return builder_.unary(OperatorKind::relu, name, x); }

    TensorId stem(TensorId images) {
        builder_.open("stem");
        TensorId x = relu("relu", conv_norm("conv", images, 64, 7, 2));
        x = builder_.pool(OperatorKind::max_pool, "pool", x, 3, 2, 1);
        builder_.close();
        return x;
    }
    TensorId stage(const std::string& name, TensorId x, std::int64_t planes, std::int64_t blocks,
                   std::int64_t stride, bool begins_unit = true) {
        builder_.open(name);
        for (std::int64_t block = 0; block < blocks; ++block) {
            if (begins_unit) builder_.begin_unit(name + "." + std::to_string(block));
            builder_.open(std::to_string(block));
            const std::int64_t step = block == 0 ? stride : 1;
            TensorId branch = relu("relu1", conv_norm("conv1", x, planes, 1, 1));
            branch = relu("relu2", conv_norm("conv2", branch, planes, 3, step));
            branch = conv_norm("conv3", branch, 4 * planes, 1, 1);
            const bool changes = step != 1 || builder_.shape(x)[0] != 4 * planes;
            x = relu("relu", builder_.add("residual", branch,
                                          changes ? conv_norm("shortcut", x, 4 * planes, 1, step) : x));
            builder_.close();
        }
        builder_.close();
        return x;
    }

private:
    GraphBuilder& builder_;
    bool has_frozen_norm_;
};

// Scores of `classes` for every pixel and anchor, against one label each.
TensorId pixel_loss(GraphBuilder& builder, const std::string& name, TensorId scores) {
    builder.open(name);
    const TensorId rows = builder.reshape(OperatorKind::transpose, "rows", scores);
    const TensorId loss =
        builder.loss(rows, builder.input("labels", {builder.shape(rows)[0]}, core::DataType::int64));
    builder.close();
    return loss;
}

TensorId sum(GraphBuilder& builder, const std::string& name, TensorId total, TensorId loss) {
    return total.is_valid() ? builder.add(name, total, loss) : loss;
}

}  // namespace

ModelGraph build_ssd(const SsdDescription& d) {
    GraphBuilder builder(d.name, d.family);
    Backbone net(builder, false);
    builder.begin_unit("stem");
    TensorId x =
        net.stem(builder.input("images", {d.channels, d.image_size, d.image_size}, core::DataType::fp32));
    x = net.stage("stage2", x, 64, 3, 1);
    x = net.stage("stage3", x, 128, 4, 2);
    x = net.stage("stage4", x, 256, 6, 1);
    builder.begin_unit("levels");
    std::vector<TensorId> levels = {x};
    const std::int64_t inner[] = {256, 256, 128, 128, 128}, outer[] = {512, 512, 256, 256, 256};
    for (std::size_t i = 0; i < 5; ++i) {
        builder.open("level" + std::to_string(i + 1));
        x = net.relu("relu1", net.conv_norm("reduce", x, inner[i], 1, 1));
        // The last two levels shrink by valid convolutions: 5 -> 3 -> 1.
        if (i < 3) {
            x = net.relu("relu2", net.conv_norm("shrink", x, outer[i], 3, 2));
        } else {
            x = builder.conv2d("shrink", x, outer[i], 3, 1, 0, false);
            x = net.relu("relu2", builder.batch_norm("norm", x));
        }
        builder.close();
        levels.push_back(x);
    }
    builder.begin_unit("head");
    builder.open("head");
    const std::int64_t anchors[] = {4, 6, 6, 6, 4, 4};
    TensorId total;
    for (std::size_t i = 0; i < levels.size(); ++i) {
        const std::string level = std::to_string(i);
        total = sum(builder, "boxes_sum" + level, total,
                    pixel_loss(builder, "boxes" + level,
                               builder.conv2d("box" + level, levels[i], 4 * anchors[i], 3, 1, 1, true)));
        total = sum(
            builder, "classes_sum" + level, total,
            pixel_loss(builder, "classes" + level,
                       builder.conv2d("class" + level, levels[i], d.classes * anchors[i], 3, 1, 1, true)));
    }
    builder.close();
    builder.graph().image_size = d.image_size;
    return builder.finish();
}

ModelGraph build_mask_rcnn(const MaskRcnnDescription& d) {
    GraphBuilder builder(d.name, d.family);
    Backbone net(builder, true);
    const std::int64_t long_side = d.image_size * 4 / 3 / 32 * 32;
    builder.begin_unit("stem");
    const std::size_t first = builder.graph().operators.size();
    TensorId x =
        net.stem(builder.input("images", {d.channels, d.image_size, long_side}, core::DataType::fp32));
    const TensorId c2 = net.stage("stage2", x, 64, 3, 1);
    for (std::size_t o = first; o < builder.graph().operators.size(); ++o)
        builder.graph().operators[o].attributes.is_frozen = true;
    const TensorId c3 = net.stage("stage3", c2, 128, 4, 2);
    const TensorId c4 = net.stage("stage4", c3, 256, 6, 2);
    const TensorId c5 = net.stage("stage5", c4, 512, 3, 2);

    builder.begin_unit("pyramid");
    builder.open("pyramid");
    std::vector<TensorId> levels;
    const TensorId stages[] = {c2, c3, c4, c5};
    for (std::size_t i = 0; i < 4; ++i) {
        const std::string level = std::to_string(i + 2);
        const TensorId lateral = builder.conv2d("lateral" + level, stages[i], 256, 1, 1, 0, true);
        levels.push_back(builder.conv2d("output" + level, lateral, 256, 3, 1, 1, true));
    }
    levels.push_back(builder.pool(OperatorKind::max_pool, "pool6", levels.back(), 1, 2, 0));
    builder.close();

    builder.begin_unit("heads");
    builder.open("proposals");
    TensorId total;
    for (std::size_t i = 0; i < levels.size(); ++i) {
        const std::string level = std::to_string(i + 2);
        const TensorId y =
            net.relu("relu" + level, builder.conv2d("conv" + level, levels[i], 256, 3, 1, 1, true));
        total = sum(
            builder, "objects_sum" + level, total,
            pixel_loss(builder, "objects" + level, builder.conv2d("object" + level, y, 3, 1, 1, 0, true)));
        total =
            sum(builder, "boxes_sum" + level, total,
                pixel_loss(builder, "boxes" + level, builder.conv2d("box" + level, y, 12, 1, 1, 0, true)));
    }
    builder.close();

    // Mosaics cut from the finest level, with (7 a) x (7 b) and (14 a) x (14 b) cells for a x b regions as
    // near to the wanted number as the level's shape allows.
    const auto mosaic = [&](const std::string& name, std::int64_t cell, std::int64_t regions) {
        const std::int64_t rows = builder.shape(levels[0])[1], columns = builder.shape(levels[0])[2];
        std::int64_t kernel = 1, wanted = regions * cell * cell;
        while (kernel < rows && (rows - kernel + 1) * (columns - kernel + 1) > wanted) ++kernel;
        return builder.pool(OperatorKind::average_pool, name, levels[0], kernel, 1, 0);
    };
    builder.open("boxes");
    TensorId box = builder.conv2d("first", mosaic("regions", 7, d.regions), 1024, 7, 7, 0, true);
    box = net.relu("relu2", builder.conv2d("second", net.relu("relu1", box), 1024, 1, 1, 0, true));
    total = sum(builder, "classes_sum", total,
                pixel_loss(builder, "classes", builder.conv2d("class", box, d.classes, 1, 1, 0, true)));
    total = sum(builder, "boxes_sum", total,
                pixel_loss(builder, "boxes", builder.conv2d("box", box, 4 * d.classes, 1, 1, 0, true)));
    builder.close();
    builder.open("masks");
    TensorId mask = mosaic("regions", 14, d.regions / 4);
    for (int i = 1; i <= 4; ++i) {
        const std::string layer = std::to_string(i);
        mask = net.relu("relu" + layer, builder.conv2d("conv" + layer, mask, 256, 3, 1, 1, true));
    }
    // A 2x2 transposed convolution of stride 2 makes four outputs a cell.
    mask = net.relu("relu5", builder.conv2d("deconvolution", mask, 4 * 256, 1, 1, 0, true));
    total = sum(builder, "sum", total,
                pixel_loss(builder, "pixels", builder.conv2d("scores", mask, d.classes, 1, 1, 0, true)));
    builder.close();
    builder.graph().image_size = d.image_size;
    // Launches of matching, sampling, decoding and suppression in maskrcnn-benchmark: hundreds of small
    // kernels a level and image, more a batch.
    builder.graph().launches_per_sample = 4800;
    builder.graph().launches_per_step = 14000;
    return builder.finish();
}

}  // namespace model
