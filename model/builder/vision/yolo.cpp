#include "model/builder/vision/yolo.h"

#include <utility>
#include <vector>

#include "model/builder/graph_builder.h"

namespace model {

namespace {

constexpr std::int64_t boxes_per_cell = 3;
constexpr std::int64_t values_of_a_box = 5;  // two of place, two of size, objectness
constexpr std::int64_t pooled_windows[] = {13, 9, 5};
constexpr std::int64_t blocks_of_stages[] = {1, 2, 8, 8, 4};  // of CSPDarknet53

class YoloBuilder {
public:
    explicit YoloBuilder(const YoloDescription& description)
        : d_(description), builder_(d_.name, d_.family) {}

    ModelGraph build() {
        builder_.begin_unit("stem");
        TensorId x =
            builder_.input("images", {d_.channels, d_.image_size, d_.image_size}, core::DataType::fp32);
        x = mish("stem", x, 32, 3);
        std::vector<TensorId> stages;
        for (const std::int64_t blocks : blocks_of_stages)
            stages.push_back(x = stage(x, blocks, std::ssize(stages)));
        builder_.begin_unit("pyramid");
        builder_.open("pyramid");
        const TensorId coarse = pooled(x);
        const TensorId middle = up("up1", coarse, stages[3], 256);
        const TensorId fine = up("up2", middle, stages[2], 128);
        const TensorId middle_again = down("down1", fine, middle, 256);
        const TensorId coarse_again = down("down2", middle_again, coarse, 512);
        builder_.close();
        builder_.begin_unit("head");
        builder_.open("head");
        TensorId total = level_loss("fine", fine, 256);
        total = builder_.add("sum1", total, level_loss("middle", middle_again, 512));
        builder_.add("sum2", total, level_loss("coarse", coarse_again, 1024));
        builder_.close();
        builder_.graph().image_size = d_.image_size;
        return builder_.finish();
    }

private:
    TensorId normed(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                    std::int64_t stride) {
        x = builder_.conv2d(name, x, channels, kernel, stride, kernel / 2, false);
        return builder_.batch_norm(name + "_norm", x);
    }
    TensorId mish(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                  std::int64_t stride = 1) {
        return builder_.elementwise(name + "_mish", {normed(name, x, channels, kernel, stride)}, true);
    }
    // Leaky ReLU, which costs what ReLU does.
    TensorId leaky(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                   std::int64_t stride = 1) {
        return builder_.unary(OperatorKind::relu, name + "_leaky", normed(name, x, channels, kernel, stride));
    }

    TensorId general(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                     std::vector<std::int64_t> shape, const Attributes& attributes = {}) {
        return builder_.general(kind, name, std::move(inputs), {}, std::move(shape), attributes, true,
                                core::DataType::fp32);
    }
    TensorId join(const std::string& name, std::vector<TensorId> inputs) {
        std::vector<std::int64_t> shape = builder_.shape(inputs[0]);
        shape[0] = 0;
        for (const TensorId input : inputs) shape[0] += builder_.shape(input)[0];
        return general(OperatorKind::concat, name, std::move(inputs), std::move(shape));
    }

    // Cross-stage partial: half of the channels go around the blocks; the first stage doubles them instead.
    TensorId stage(TensorId x, std::int64_t blocks, std::int64_t number) {
        const std::int64_t outputs = 2 * builder_.shape(x)[0];
        const bool is_first = number == 0;
        const std::int64_t inner = is_first ? outputs : outputs / 2;
        const std::string name = "stage" + std::to_string(number + 1);
        builder_.begin_unit(name);
        builder_.open(name);
        x = mish("down", x, outputs, 3, 2);
        const TensorId around = mish("around", x, inner, 1);
        x = mish("through", x, inner, 1);
        for (std::int64_t block = 0; block < blocks; ++block) {
            const std::string index = std::to_string(block);
            const TensorId branch =
                mish("second" + index, mish("first" + index, x, is_first ? inner / 2 : inner, 1), inner, 3);
            x = builder_.add("residual" + index, branch, x);
        }
        x = mish("behind", x, inner, 1);
        x = mish("join", join("joined", {x, around}), outputs, 1);
        builder_.close();
        return x;
    }

    TensorId pooled(TensorId x) {
        x = leaky("pooled3", leaky("pooled2", leaky("pooled1", x, 512, 1), 1024, 3), 512, 1);
        std::vector<TensorId> all;
        for (const std::int64_t window : pooled_windows)
            all.push_back(builder_.pool(OperatorKind::max_pool, "pool" + std::to_string(window), x, window, 1,
                                        window / 2));
        all.push_back(x);
        x = leaky("pooled4", join("pools", std::move(all)), 512, 1);
        return leaky("pooled6", leaky("pooled5", x, 1024, 3), 512, 1);
    }

    TensorId five(const std::string& name, TensorId x, std::int64_t channels) {
        for (const int i : {1, 2, 3, 4, 5})
            x = leaky(name + "_" + std::to_string(i), x, i % 2 == 0 ? 2 * channels : channels,
                      i % 2 == 0 ? 3 : 1);
        return x;
    }

    TensorId up(const std::string& name, TensorId coarse, TensorId stage, std::int64_t channels) {
        TensorId x = leaky(name + "_narrow", coarse, channels, 1);
        const TensorId lateral = leaky(name + "_lateral", stage, channels, 1);
        // Every pixel four times.
        x = general(OperatorKind::gather, name + "_nearest", {x}, builder_.shape(lateral));
        return five(name, join(name + "_join", {lateral, x}), channels);
    }

    TensorId down(const std::string& name, TensorId fine, TensorId coarse, std::int64_t channels) {
        const TensorId x = leaky(name + "_stride", fine, channels, 3, 2);
        return five(name, join(name + "_join", {x, coarse}), channels);
    }

    TensorId level_loss(const std::string& name, TensorId x, std::int64_t channels) {
        builder_.open(name);
        x = builder_.conv2d("values", leaky("widen", x, channels, 3),
                            boxes_per_cell * (values_of_a_box + d_.classes), 1, 1, 0, true);
        const TensorId rows = builder_.reshape(OperatorKind::transpose, "cells", x);
        const TensorId loss =
            builder_.loss(rows, builder_.input("labels", {builder_.shape(rows)[0]}, core::DataType::int64));
        builder_.close();
        return loss;
    }

    const YoloDescription& d_;
    GraphBuilder builder_;
};

}  // namespace

ModelGraph build_yolo(const YoloDescription& description) { return YoloBuilder(description).build(); }

}  // namespace model
