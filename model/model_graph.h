// The model as a directed acyclic graph of operators in a fixed topological order, with its module tree and
// partition units. Immutable once built.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/index/indexed_vector.h"
#include "core/unsupported.h"
#include "model/model_fwd.h"
#include "model/operator.h"

namespace model {

// Smallest piece a pipeline partition may place: the embedding, one layer, the final norm with head and loss.
// Consecutive, covering all operators.
struct Unit {
    std::string name;
    OperatorRange operators;
};

// Node of the module tree (layer -> block -> operator); leaves are operators.
struct Module {
    std::string name;                      // last path component
    std::optional<std::int32_t> parent{};  // the root has none
    std::vector<std::int32_t> children;
    OperatorRange operators;
};

// What a graph's tokens are of their sequence: all, or one of `count` parts of equal length (segment.h).
struct SequencePart {
    int index = 0, count = 1;
    bool is_whole() const { return count == 1; }
    bool is_last() const { return index + 1 == count; }
};

struct ModelGraph {
    std::string name;
    std::string family;  // "gpt", "llama", "bert", "t5", "mixtral", "resnet", "convnet", ...
    core::IndexedVector<TensorId, Tensor> tensors;
    // A parameter used by two operators is tied and counted once.
    core::IndexedVector<ParameterId, Parameter> parameters;
    core::IndexedVector<OperatorId, Operator> operators;  // topological
    std::vector<Unit> units;
    std::vector<Module> modules;  // [0] is the root
    std::int64_t tokens_per_sample =
        0;  // sequence length of language models (decoder's for T5); 0 for vision
    std::int64_t encoder_tokens_per_sample = 0;  // T5
    std::int64_t vocabulary = 0;
    std::int64_t image_size = 0;  // vision
    SequencePart part;
    std::string whole_experts_of;  // hash of the graph that with_whole_experts made this of; empty: none
    // Kernels launched beside the operators without work worth counting (data-dependent matching, sampling,
    // suppression of detectors), forward and backward.
    std::int64_t launches_per_sample = 0, launches_per_step = 0;
    std::vector<std::string> assumptions;  // facts that the source did not state

    std::int64_t first_token() const { return part.index * tokens_per_sample; }  // in the sequence
    bool has_whole_experts() const { return !whole_experts_of.empty(); }
    std::int64_t sequence_tokens() const { return part.count * tokens_per_sample; }

    const Tensor& tensor(TensorId id) const { return tensors[id]; }
    const Parameter& parameter(ParameterId id) const { return parameters[id]; }
    const Operator& op(OperatorId id) const { return operators[id]; }
};

// Published parameter count: every parameter once, tied ones included once, task heads
// (Parameter::is_task_head) left out.
std::int64_t parameter_count(const ModelGraph& graph);
// Parameters that are trained, task heads included.
std::int64_t trained_parameter_count(const ModelGraph& graph);
std::int64_t parameter_count(const ModelGraph& graph,
                             OperatorRange range);  // parameters used in the range, each once
// Parameters used by operators of more than one unit (tied), each with the units that use it, ascending.
struct TiedParameter {
    ParameterId parameter;
    std::vector<std::int32_t> units;
};
std::vector<TiedParameter> tied_parameters(const ModelGraph& graph);
// Tensors produced by operators before index `boundary` (of a partition: units[u].operators.begin) and
// consumed at or after it (data-loader inputs excepted: every stage reads its own), ascending.
std::vector<TensorId> tensors_crossing(const ModelGraph& graph, std::int32_t boundary);
// The tensor whose buffer this one is: through views (flatten) and parallel_enter, which is the identity
// without sequence parallelism; with it, what is kept for backward is the share before the gather, gathered
// again in backward (arXiv 2205.05198, section 4.2.2).
TensorId storage_of(const ModelGraph& graph, TensorId tensor);
// Why this tensor-parallel degree cannot split the model: "heads = 28 of layers.0.attention.core".
// Vocabularies may split unevenly (the last rank pads).
std::optional<core::Unsupported> tensor_parallel_unsupported(const ModelGraph& graph, int degree);
// Why sequence parallelism cannot run the model: operators outside tensor-parallel regions pick single
// tokens.
std::optional<core::Unsupported> sequence_parallel_unsupported(const ModelGraph& graph);
// Why context parallelism of this degree cannot divide the tokens of the model's samples.
std::optional<core::Unsupported> context_parallel_unsupported(const ModelGraph& graph, int degree);
// Why the experts cannot be spread over this many ranks.
std::optional<core::Unsupported> expert_parallel_unsupported(const ModelGraph& graph, int degree);
// Stable structural hash (names, kinds, shapes, edges, attributes), 16 hexadecimal digits: plans carry it and
// are refused for another graph. The same for a graph with whole experts as for the one it was made of.
std::string hash_of(const ModelGraph& graph);
// Broken graph (cycle, dangling tensor, units that do not cover, shape that contradicts its operator) is a
// broken promise of a builder: core::InternalError.
void check(const ModelGraph& graph);

}  // namespace model
