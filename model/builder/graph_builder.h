// Writes a ModelGraph operator by operator: names, module tree, units, producers and consumers are kept
// consistent here, shapes follow from the inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_graph.h"

namespace model {

struct LinearOptions {
    enum class Split {
        none,
        column,
        row
    };  // over the tensor-parallel group: outputs, inputs (the result is then a partial sum)
    Split split = Split::none;
    bool has_bias = true;
    std::int64_t split_blocks = 1;             // of a column split
    std::vector<std::int64_t> split_sections;  // of a column split with unequal blocks
    double deviation = 0.02;
    double input_scale = 1.0;
    ParameterId tied_weight;  // use this weight instead of a new one
    bool is_task_head = false;
    bool has_partial_gradient = false;  // Parameter::has_partial_gradient of weight and bias
};

class GraphBuilder {
public:
    GraphBuilder(std::string name, std::string family);

    // Everything from here to the next begin_unit belongs to this partition unit.
    void begin_unit(std::string name);
    // Modules nest; names of operators and parameters are prefixed by the open modules' names.
    void open(std::string name);
    void close();

    ParameterId parameter(const std::string& name, Parameter description);
    TensorId input(const std::string& name, std::vector<std::int64_t> shape, core::DataType type);

    TensorId embedding(const std::string& name, TensorId ids, ParameterId table);
    TensorId position_embedding(const std::string& name, TensorId x, std::int64_t positions,
                                std::int64_t offset, double deviation);
    TensorId prepend_token(const std::string& name, TensorId x);
    TensorId linear(const std::string& name, TensorId x, std::int64_t outputs, const LinearOptions& options);
    TensorId layer_norm(const std::string& name, TensorId x, double epsilon, bool has_shift = true,
                        bool is_task_head = false);
    TensorId rms_norm(const std::string& name, TensorId x, double epsilon);
    TensorId batch_norm(const std::string& name, TensorId x);
    // `key_value` is invalid for self-attention; `relative_bias` is invalid without.
    // `norms_and_sinks` are parameters behind it (see OperatorKind::attention).
    TensorId attention(const std::string& name, TensorId query, TensorId key_value,
                       const Attributes& attributes, ParameterId relative_bias = {},
                       const std::vector<ParameterId>& norms_and_sinks = {});
    // A layer norm without parameters (OLMo).
    TensorId plain_norm(const std::string& name, TensorId x, double epsilon);
    // Pointwise arithmetic of tensors of one shape, or of a last dimension of one, split as the first is.
    TensorId elementwise(const std::string& name, std::vector<TensorId> inputs, bool saves_inputs = false);
    // Columns side by side; and a part of them. `split` is the result's in a region.
    TensorId join_columns(const std::string& name, std::vector<TensorId> inputs, std::int64_t columns,
                          TensorSplit split);
    TensorId columns(const std::string& name, TensorId x, std::int64_t count);
    TensorId unary(OperatorKind kind, const std::string& name, TensorId x,
                   bool is_tanh_approximation =
                       false);  // one output of the input's shape (gated: half the last dimension)
    TensorId dropout(const std::string& name, TensorId x,
                     double probability);  // x itself when the probability is zero
    TensorId add(const std::string& name, TensorId a, TensorId b);
    TensorId conv2d(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                    std::int64_t stride, std::int64_t padding, bool has_bias);
    TensorId pool(OperatorKind kind, const std::string& name, TensorId x, std::int64_t kernel,
                  std::int64_t stride, std::int64_t padding);
    TensorId reshape(OperatorKind kind, const std::string& name,
                     TensorId x);  // flatten, transpose, merge_patches, average_tokens, select_first_token
    TensorId select_positions(const std::string& name, TensorId x, TensorId positions);
    TensorId mixture_of_experts(const std::string& name, TensorId x, const Attributes& attributes,
                                double deviation, double output_deviation);
    // A region that begins without an enter (embedding: ids have no gradient) or ends without an exit (loss).
    void begin_region();
    void end_region();
    TensorId enter(const std::string& name, TensorId x);
    TensorId exit(const std::string& name, TensorId x);
    // Any kind, for readers of foreign graphs, which bring their own shapes. Without `has_gradient` (masks,
    // indices) the result is data of this type.
    TensorId general(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                     std::vector<ParameterId> parameters, std::vector<std::int64_t> shape,
                     const Attributes& attributes, bool has_gradient, core::DataType type);
    // Statistics and mean cross-entropy of logits [rows, classes] against labels [rows].
    TensorId loss(TensorId logits, TensorId labels);

    const std::vector<std::int64_t>& shape(TensorId tensor) const { return graph_.tensor(tensor).shape; }
    ModelGraph& graph() { return graph_; }
    Operator& last_operator() { return graph_.operators.back(); }
    const ModelGraph& graph() const { return graph_; }
    // Closes the open modules and checks the graph.
    ModelGraph finish();

private:
    TensorId append(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                    std::vector<ParameterId> parameters, Tensor output, const Attributes& attributes = {});
    Tensor like(TensorId x) const;  // an output of x's shape and split

    std::string path_of(const std::string& name) const;

    ModelGraph graph_;
    std::vector<std::int32_t> open_modules_;
    std::string prefix_;
    bool in_region_ = false;
};

}  // namespace model
