// The second half of the ONNX reader: one node after the other as an operator of ours. Values of the graph
// are of three kinds: activations (they follow from the inputs; they have a tensor), weights (floating
// initialisers and what only renames or transposes them) and constants (everything else that follows from
// neither).
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/builder/graph_builder.h"
#include "model/operators/rank_share.h"
#include "model/reader/onnx/onnx.h"
#include "model/reader/onnx/onnx_operator_kinds.h"
#include "model/reader/onnx/onnx_patterns.h"
#include "model/reader/onnx/onnx_stored.h"

namespace model {

class OnnxMapper {
public:
    using Shape = std::vector<std::int64_t>;

    OnnxMapper(const OnnxGraph& g, const std::string& path, core::Diagnostics& d, const std::string& k)
        : graph(g),
          patterns(find_patterns(g)),
          stored(classify_stored(g)),
          diagnostics(d),
          key(k),
          location{path, 0, 0},
          builder(g.name, "onnx"),
          tensors_(g.values.size()),
          weights_(g.values.size()),
          parameters_(g.values.size()) {}

    std::optional<ModelGraph> run();

private:
    // A weight under the name of this value: which initialiser, whether its two dimensions are swapped,
    // whether it is trained wherever it is read (a floating Constant is only where it is the weight of a
    // product).
    struct Weight {
        int source = -1;
        bool is_swapped = false, is_strong = false;
    };
    bool fail(std::string message, std::string hint = {});
    const OnnxNode& node(int n) const { return graph.nodes[n]; }
    std::int64_t elements(int value) const { return element_count(graph.value(value).shape); }
    bool is_activation(int value) const { return value >= 0 && tensors_[value].is_valid(); }
    TensorId tensor(int value) const { return tensors_[value]; }
    const Weight& weight(int value) const { return weights_[value]; }
    bool is_weight(int value) const {
        return value >= 0 && !is_activation(value) && weight(value).source >= 0;
    }
    bool is_weight_of_one(int value) const;
    bool has_gradient_at(int value) const {
        return is_activation(value) && has_gradient(builder_graph(), tensor(value));
    }
    const ModelGraph& builder_graph() const { return builder.graph(); }

    // The shape of one sample: without the batch, wherever exporters put it.
    std::optional<Shape> sample_shape(int value);
    std::string unique_name(const OnnxNode& from);

    // The parameter behind a weight, in this shape; another shape than at its first use gives nothing (the
    // same elements are then read in another way).
    ParameterId parameter(int value, const Shape& shape);
    ParameterId parameter(int value) { return parameter(value, graph.value(weight(value).source).shape); }
    bool can_be(int value, const Shape& shape) const;

    // Appends an operator for output `value` of the node. What has no gradient (it follows from inputs alone,
    // or is no number) is data.
    TensorId emit(OperatorKind kind, const OnnxNode& from, int value, std::vector<TensorId> inputs,
                  std::vector<ParameterId> parameters, const Attributes& attributes = {},
                  bool can_have_gradient = true, std::optional<Shape> given = std::nullopt);

    // Activations and weights among the inputs, in order.
    void operands(const OnnxNode& from, std::vector<TensorId>& inputs, std::vector<ParameterId>& parameters);
    bool add_inputs();

    // The output to train on, and the softmax in front of it, which the loss contains.
    void choose_loss();
    bool add_loss();
    // Scores of several outputs, one row an element: [elements, 1].
    TensorId joined_outputs();
    void describe_model();
    // A remark on what an exporter may have folded away, and how to export without.
    void describe_folded_norms();
    void map(int n);

    // Transposed, reshaped, cast: still the same weight.
    bool rename_weight(const OnnxNode& from);
    void map_unknown(const OnnxNode& from);
    bool map_pattern(const OnnxNode& last, const OnnxPattern& pattern);

    // Weights as parameters; constants that are not trained are left out.
    std::vector<ParameterId> trained(const std::vector<int>& values, const Shape& shape);
    void layer_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values,
                    double epsilon, bool is_rms);
    void batch_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values);
    void map_operator(const OnnxNode& from);

    void alias(int value, TensorId x) { tensors_[value] = x; }

    void reshape(const OnnxNode& from, TensorId x);

    // Moving dimensions of extent one moves nothing.
    void transpose(const OnnxNode& from, TensorId x);
    void elementwise(const OnnxNode& from, OnnxKeeps keeps);
    void gather(const OnnxNode& from);
    // The largest values, places that are not zero, boxes, regions: what detection models choose.
    void selection(const OnnxNode& from);

    // Columns and rows as the node reads them; one-dimensional operands are rows and columns of one.
    void product(const OnnxNode& from, int output, int bias);
    void einsum(const OnnxNode& from);
    TensorId constant_operand(const OnnxNode& from, int value);

    // A bias that is no plain row of weights.
    void add_operand(const OnnxNode& from, int output, int operand);
    void convolution(const OnnxNode& from);
    static bool has_regions(const Shape& in, const Shape& out, std::size_t rank);
    static Shape mosaic(const Shape& regions);

    // False where the layer is not of weights [directions, gates hidden, ...] and one sequence a sample.
    bool recurrence(const OnnxNode& from);
    static bool follows(const Attributes& a, const Shape& in, const Shape& out);
    void pool(const OnnxNode& from, TensorId x);
    const OnnxGraph& graph;
    const OnnxPatterns patterns;
    const OnnxStored stored;
    core::Diagnostics& diagnostics;
    const std::string key;
    const core::SourceLocation location;
    GraphBuilder builder;
    std::vector<TensorId> tensors_;
    std::vector<Weight> weights_;
    std::vector<ParameterId> parameters_;  // by source value
    std::vector<bool> is_left_out_;
    std::map<std::string, int> names_;
    std::vector<int> trained_;  // outputs, where one loss is over several
    int logits_ = -1, loss_node_ = -1, unknowns_ = 0, repeated_weights_ = 0;
    bool has_failed_ = false, has_scaled_norms_ = false;
};

}  // namespace model
