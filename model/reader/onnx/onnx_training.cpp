// Training of an imported graph: its inputs, the output with the scores, a loss where the graph has none.
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/reader/onnx/onnx_mapper.h"

#include <algorithm>

#include <fmt/core.h>

namespace model {

namespace {

bool is_any_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

}  // namespace

bool OnnxMapper::add_inputs() {
    bool has_image = false;
    for (int input : graph.inputs) {
        const OnnxValue& value = graph.value(input);
        if (value.consumers.empty()) continue;
        const std::optional<Shape> shape = sample_shape(input);
        if (!shape) return false;
        OnnxNode named;
        named.name = value.name;
        named.type = "input";
        tensors_[input] =
            builder.input(unique_name(named), *shape,
                          value.type == OnnxType::floating ? core::DataType::fp32 : core::DataType::int64);
        has_image = has_image || (value.type == OnnxType::floating && value.shape.size() == 4);
        if (has_image) builder.graph().image_size = std::max(builder.graph().image_size, shape->back());
        if (value.type == OnnxType::integer && value.shape.size() == 2 &&
            builder.graph().tokens_per_sample == 0)
            builder.graph().tokens_per_sample = element_count(*shape);
    }
    if (has_image) builder.graph().tokens_per_sample = 0;
    return true;
}

void OnnxMapper::choose_loss() {
    is_left_out_.assign(graph.nodes.size(), false);
    for (const std::int32_t n : core::indices(graph.nodes))
        if (is_any_of(graph.nodes[n].type, {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) &&
            graph.nodes[n].domain.empty())
            loss_node_ = n;
    if (loss_node_ >= 0) return;
    for (int output : graph.outputs)
        if (graph.value(output).type == OnnxType::floating) logits_ = output;
    for (int output : graph.outputs)
        if (graph.value(output).name == "logits") logits_ = output;
    if (logits_ < 0) return;
    const bool selects_boxes = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const OnnxNode& node) {
        return node.type == "NonMaxSuppression" && node.domain.empty();
    });
    if (selects_boxes) {
        for (int output : graph.outputs)
            if (graph.value(output).type == OnnxType::floating) trained_.push_back(output);
        return;
    }
    const std::string name = graph.value(logits_).name;
    std::string note = "the graph has no loss: cross-entropy over the last dimension of output " +
                       core::in_quotes(name, 100);
    const int last = graph.value(logits_).producer;
    if (last >= 0 && is_any_of(node(last).type, {"Softmax", "LogSoftmax"}) &&
        graph.value(logits_).consumers.empty() && node(last).input(0) >= 0) {
        is_left_out_[last] = true;
        logits_ = node(last).input(0);
        note += " (its softmax is part of the loss)";
    }
    builder.graph().assumptions.push_back(note);
    if (graph.outputs.size() > 1)
        builder.graph().assumptions.push_back(fmt::format(
            "the graph has {} outputs; the others are computed and not trained on", graph.outputs.size()));
}

TensorId OnnxMapper::joined_outputs() {
    std::vector<TensorId> parts;
    std::int64_t count = 0;
    for (const int output : trained_) {
        if (!is_activation(output) || !has_gradient_at(output) ||
            std::find(parts.begin(), parts.end(), tensor(output)) != parts.end())
            continue;
        parts.push_back(tensor(output));
        count += element_count(builder.shape(parts.back()));
    }
    if (parts.empty()) return {};
    builder.graph().assumptions.push_back(fmt::format(
        "the losses of a detection model are not in its graph: one over all elements of {} outputs "
        "is priced, and as many regions as this export keeps",
        parts.size()));
    return builder.general(OperatorKind::concat, "loss.outputs", std::move(parts), {}, {count, 1}, {}, true,
                           core::DataType::fp32);
}

bool OnnxMapper::add_loss() {
    TensorId logits, labels;
    if (loss_node_ >= 0) {
        const OnnxNode& from = node(loss_node_);
        if (!is_activation(from.input(0)) || !is_activation(from.input(1)))
            return fail(describe(from) + " needs computed scores and labels");
        logits = tensor(from.input(0));
        labels = tensor(from.input(1));
        if (graph.value(from.inputs[0]).shape.size() > 2) {
            // [n, classes, d...]: one row per d.
            const std::int64_t classes = graph.value(from.inputs[0]).shape[1];
            logits = builder.general(OperatorKind::permute, "loss.rows", {logits}, {},
                                     {element_count(builder.shape(logits)) / classes, classes}, {}, true,
                                     core::DataType::fp32);
        }
    } else {
        if (!trained_.empty()) logits = joined_outputs();
        else if (!is_activation(logits_))
            return fail("no floating-point output depends on the inputs", "there is nothing to train");
        else logits = tensor(logits_);
    }
    if (!logits.is_valid() || !has_gradient(builder_graph(), logits))
        return fail("the output to train on depends on no weight", "there is nothing to train");
    // Rows of class scores: pixels of extent one behind the classes are none.
    Shape shape = builder.shape(logits);
    while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
    const Shape rows{element_count(shape) / shape.back(), shape.back()};
    if (builder.shape(logits) != rows)
        logits = builder.general(OperatorKind::reshape, "loss.logits", {logits}, {}, rows, {}, true,
                                 core::DataType::fp32);
    if (!labels.is_valid()) labels = builder.input("labels", {rows[0]}, core::DataType::int64);
    else if (builder.shape(labels) != Shape{rows[0]}) {
        if (element_count(builder.shape(labels)) != rows[0])
            return fail(describe(node(loss_node_)) + ": there must be one label per row of scores");
        labels = builder.general(OperatorKind::reshape, "loss.labels", {labels}, {}, {rows[0]}, {}, false,
                                 core::DataType::int64);
    }
    if (builder.graph().tokens_per_sample > 0) builder.graph().vocabulary = rows[1];
    builder.loss(logits, labels);
    return true;
}

void OnnxMapper::describe_model() {
    ModelGraph& model = builder.graph();
    model.assumptions.insert(model.assumptions.end(), graph.assumptions.begin(), graph.assumptions.end());
    if (has_scaled_norms_)
        model.assumptions.push_back(
            "batch norms followed by a scale layer have no affine part of their own (Caffe): the scale "
            "layer's is counted");
    model.assumptions.insert(model.assumptions.end(), stored.remarks.begin(), stored.remarks.end());
    if (repeated_weights_ > 0)
        model.assumptions.push_back(
            fmt::format("{} vectors are stored once for several that were equal at export, and each counts "
                        "(TorchScript's exporter; matrices that are stored once are tied)",
                        repeated_weights_));
    if (!patterns.at_last.empty())
        model.assumptions.push_back(
            fmt::format("{} groups of nodes (norms, GELU, biases taken apart by the exporter) are run as one "
                        "operator each",
                        patterns.at_last.size()));
    describe_folded_norms();
}

// What exporters fold away before a graph is written, told by what is left: batch norms of a model in eval
// mode become biases of convolutions.
namespace {

// Below this many convolutions a network is as likely to have biases of its own (the patches of a ViT).
constexpr int fewest_convolutions = 4;

}  // namespace

void OnnxMapper::describe_folded_norms() {
    int convolutions = 0, biased = 0;
    for (const OnnxNode& from : graph.nodes) {
        if (from.type.ends_with("Normalization")) return;
        if (from.type != "Conv") continue;
        ++convolutions;
        if (is_weight(from.input(2))) ++biased;
    }
    if (convolutions < fewest_convolutions || biased < convolutions) return;
    builder.graph().assumptions.push_back(fmt::format(
        "all {} convolutions have biases and no norm follows: if batch norms were folded into them "
        "(torch.onnx "
        "does so to a model in eval mode), training has more parameters, memory and time than this graph; "
        "export with training = torch.onnx.TrainingMode.TRAINING and do_constant_folding = False",
        convolutions));
}

}  // namespace model
