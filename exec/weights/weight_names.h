// What the weights of a model are called outside: where each parameter's rows lie in the tensors of Hugging
// Face's transformers, or under our own names.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/unsupported.h"
#include "model/model_graph.h"

namespace exec {

// Consecutive rows of a tensor that are rows of a parameter. A row is all elements of the last dimension; a
// vector has rows of one element.
struct WeightRows {
    std::string tensor;
    std::vector<std::int64_t> shape;  // of the tensor
    std::int64_t first_in_tensor = 0, first = 0, count = 0;
    bool is_transposed = false;  // the tensor is [inputs, outputs], as GPT-2's Conv1D keeps it
};

// By parameter; together they cover all its rows.
struct WeightNames {
    core::IndexedVector<model::ParameterId, std::vector<WeightRows>> rows;
};

// Every parameter is a tensor of its own name and shape.
WeightNames own_names(const model::ModelGraph& graph);

// Names of transformers' classes with a head (release 5.23, November 2026): LlamaForCausalLM and those with
// its names (Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE, ...), GPT2LMHeadModel, OPTForCausalLM,
// GPTNeoXForCausalLM, BertForPreTraining and BertForMaskedLM. Which of them follows from the graph; a
// parameter without a counterpart there is named as the reason.
std::variant<WeightNames, core::Unsupported> huggingface_names(const model::ModelGraph& graph);

// Other names that files on the hub have for the same tensor: without the class's prefix (models saved
// without their head), "gamma" and "beta" for norms.
std::vector<std::string> aliases_of(const std::string& tensor);

}  // namespace exec
