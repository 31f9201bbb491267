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

bool OnnxMapper::is_mask(int value) const {
    const OnnxValue& scores = graph.value(value);
    if (scores.shape.size() < 3 || scores.consumers.empty() ||
        element_count(scores.shape) != scores.shape.back() * scores.shape[scores.shape.size() - 2])
        return false;
    return std::all_of(scores.consumers.begin(), scores.consumers.end(), [&](int n) {
        const int sum = node(n).output();
        if (node(n).type != "Add" || sum < 0 || graph.value(sum).consumers.empty()) return false;
        const std::vector<int>& next = graph.value(sum).consumers;
        return std::all_of(next.begin(), next.end(),
                           [&](int after) { return node(after).type == "Softmax"; });
    });
}

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
        if (!is_activation(logits_))
            return fail("no floating-point output depends on the inputs", "there is nothing to train");
        logits = tensor(logits_);
    }
    if (!has_gradient(builder_graph(), logits))
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
    if (masked_scores_ > 0)
        model.assumptions.push_back(
            fmt::format("{} stored scores that are added in front of a softmax, the same for all heads, are "
                        "masks and not trained",
                        masked_scores_));
    if (!patterns.at_last.empty())
        model.assumptions.push_back(
            fmt::format("{} groups of nodes (norms, GELU, biases taken apart by the exporter) are run as one "
                        "operator each",
                        patterns.at_last.size()));
    describe_folded_norms();
    describe_folded_scores();
}

// What exporters fold away before a graph is written, told by what is left: batch norms of a model in eval
// mode become biases of convolutions, and tables of relative positions become scores of every head.
namespace {

// Below this many convolutions a network is as likely to have biases of its own (the patches of a ViT).
constexpr int fewest_convolutions = 4;
// Between a bias of scores and their softmax: shapes for windows, masks, and shapes back.
constexpr int most_steps_to_softmax = 6;

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

bool OnnxMapper::reaches_softmax(int value, int steps) const {
    if (value < 0 || steps == 0) return false;
    const std::vector<int>& next = graph.value(value).consumers;
    return std::any_of(next.begin(), next.end(), [&](int n) {
        const std::string& type = node(n).type;
        if (type == "Softmax") return true;
        const bool keeps = type == "Add" || type == "Reshape" || type == "Squeeze" || type == "Unsqueeze";
        return keeps && reaches_softmax(node(n).output(), steps - 1);
    });
}

void OnnxMapper::describe_folded_scores() {
    std::int64_t scores = 0;
    for (const std::int32_t v : core::indices(graph.values)) {
        const OnnxValue& value = graph.values[v];
        const std::size_t rank = value.shape.size();
        if (!value.is_initializer || !is_weight(v) || rank < 3) continue;
        const bool is_a_matrix_per_head = value.shape[rank - 1] > 1 && value.shape[rank - 3] > 1 &&
                                          value.shape[rank - 1] == value.shape[rank - 2];
        const bool is_added = std::all_of(value.consumers.begin(), value.consumers.end(),
                                          [&](int n) { return node(n).type == "Add"; });
        if (is_a_matrix_per_head && is_added && reaches_softmax(v, most_steps_to_softmax))
            scores += elements(v);
    }
    if (scores > 0)
        builder.graph().assumptions.push_back(fmt::format(
            "{} stored scores of heads count as parameters: torch.onnx folds smaller tables of relative "
            "positions to them; export with do_constant_folding = False to keep the tables",
            scores));
}

}  // namespace model
