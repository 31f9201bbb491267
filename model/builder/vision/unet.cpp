#include "model/builder/vision/unet.h"

#include "model/builder/graph_builder.h"

namespace model {

namespace {

constexpr std::int64_t kernel = 3, halving = 2;
constexpr std::int64_t convolutions_per_level = 2;

// What a level's convolutions take from an extent.
std::int64_t shrinkage(const UnetDescription& d) {
    return d.is_padded ? 0 : convolutions_per_level * (kernel - 1);
}

class UnetBuilder {
public:
    explicit UnetBuilder(const UnetDescription& description)
        : d_(description), builder_(d_.name, d_.family) {}

    ModelGraph build() {
        std::vector<std::int64_t> volume = d_.volume;
        volume.insert(volume.begin(), d_.channels);
        TensorId x;
        std::vector<TensorId> joined;
        for (std::int64_t level = 0; level < d_.levels; ++level) {
            open("down", level);
            x = level == 0 ? builder_.input("volumes", volume, core::DataType::fp32) : halved(x);
            const std::int64_t outputs = d_.base << (level + 1);
            x = normed_convolution("first", x, outputs / 2);
            x = normed_convolution("second", x, outputs);
            builder_.close();
            joined.push_back(x);
        }
        for (std::int64_t level = d_.levels - 2; level >= 0; --level) {
            open("up", level);
            x = join(doubled(x), joined[level]);
            const std::int64_t outputs = d_.base << (level + 1);
            x = normed_convolution("first", x, outputs);
            x = normed_convolution("second", x, outputs);
            builder_.close();
        }
        builder_.begin_unit("head");
        builder_.open("head");
        x = convolution("scores", x, d_.classes, 1, true);
        const TensorId logits = builder_.reshape(OperatorKind::transpose, "voxels", x);
        builder_.loss(logits, builder_.input("labels", {builder_.shape(logits)[0]}, core::DataType::int64));
        builder_.close();
        return builder_.finish();
    }

private:
    void open(const std::string& way, std::int64_t level) {
        builder_.begin_unit(way + "." + std::to_string(level));
        builder_.open(way + "." + std::to_string(level));
    }

    std::vector<std::int64_t> with_channels(TensorId x, std::int64_t channels) const {
        std::vector<std::int64_t> shape = builder_.shape(x);
        shape[0] = channels;
        return shape;
    }

    TensorId convolution(const std::string& name, TensorId x, std::int64_t outputs, std::int64_t extent,
                         bool has_bias) {
        std::vector<std::int64_t> shape = with_channels(x, outputs);
        if (!d_.is_padded)
            for (std::size_t i = 1; i < shape.size(); ++i) shape[i] -= extent - 1;
        Attributes a;
        a.padding = d_.is_padded ? extent / 2 : 0;
        return with_weights(name, x, {outputs, builder_.shape(x)[0], extent, extent, extent}, has_bias, a,
                            std::move(shape));
    }

    TensorId with_weights(const std::string& name, TensorId x, std::vector<std::int64_t> weight_shape,
                          bool has_bias, Attributes a, std::vector<std::int64_t> shape) {
        Parameter weight, bias;
        weight.shape = std::move(weight_shape);
        bias.shape = {shape[0]};
        bias.initialization = Initialization::zeros;
        bias.decays = false;
        std::vector<ParameterId> parameters{builder_.parameter(name + ".weight", std::move(weight))};
        if (has_bias) parameters.push_back(builder_.parameter(name + ".bias", std::move(bias)));
        a.has_bias = has_bias;
        return builder_.general(OperatorKind::convolution, name, {x}, std::move(parameters), std::move(shape),
                                a, true, core::DataType::fp32);
    }

    TensorId normed_convolution(const std::string& name, TensorId x, std::int64_t outputs) {
        x = convolution(name, x, outputs, kernel, true);
        return builder_.unary(OperatorKind::relu, name + "_relu", builder_.batch_norm(name + "_norm", x));
    }

    TensorId halved(TensorId x) {
        std::vector<std::int64_t> shape = builder_.shape(x);
        for (std::size_t i = 1; i < shape.size(); ++i) shape[i] /= halving;
        Attributes a;
        a.is_maximum = true;
        a.stride = halving;
        return builder_.general(OperatorKind::pooling, "pool", {x}, {}, std::move(shape), a, true,
                                core::DataType::fp32);
    }

    // A transposed convolution without a bias, whose windows do not overlap.
    TensorId doubled(TensorId x) {
        const std::int64_t channels = builder_.shape(x)[0];
        std::vector<std::int64_t> shape = builder_.shape(x);
        for (std::size_t i = 1; i < shape.size(); ++i) shape[i] *= halving;
        Attributes a;
        a.is_transposed = true;
        a.stride = halving;
        return with_weights("up", x, {channels, channels, halving, halving, halving}, false, a,
                            std::move(shape));
    }

    TensorId join(TensorId x, TensorId from_the_way_down) {
        std::vector<std::int64_t> shape = with_channels(x, builder_.shape(from_the_way_down)[0]);
        if (shape != builder_.shape(from_the_way_down))
            from_the_way_down = builder_.general(OperatorKind::slice, "cut", {from_the_way_down}, {}, shape,
                                                 {}, true, core::DataType::fp32);
        shape[0] += builder_.shape(x)[0];
        return builder_.general(OperatorKind::concat, "join", {from_the_way_down, x}, {}, std::move(shape),
                                {}, true, core::DataType::fp32);
    }

    const UnetDescription& d_;
    GraphBuilder builder_;
};

}  // namespace

std::optional<std::int64_t> unet_extent(const UnetDescription& d, std::int64_t extent) {
    for (std::int64_t level = 0; level < d.levels; ++level) {
        if (level > 0 && extent % halving != 0) return std::nullopt;
        extent = (level > 0 ? extent / halving : extent) - shrinkage(d);
        if (extent <= 0) return std::nullopt;
    }
    for (std::int64_t level = d.levels - 2; level >= 0; --level) extent = extent * halving - shrinkage(d);
    return extent > 0 ? std::optional(extent) : std::nullopt;
}

ModelGraph build_unet(const UnetDescription& description) { return UnetBuilder(description).build(); }

}  // namespace model
