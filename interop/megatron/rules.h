// What a plan may ask of Megatron-LM, whichever words tell it: arguments, or Megatron-Bridge's Python.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "interop/expression.h"
#include "interop/transformer_shape.h"

namespace interop {

// Refuses models, schedules, sharding, offload, precisions and optimizers that Megatron-LM does not have,
// each by its key. `target` names the words in messages about the model.
void refuse_beyond_megatron(Expression& e, const TransformerShape& shape, const std::string& target,
                            core::Diagnostics& diagnostics);

// Degrees by the names of Megatron-LM's fields, and how ranks that divide sequences communicate (by default
// it passes keys and values around a ring, "p2p"); its arguments are the same with dashes. Context and expert
// parallelism are left out where they are 1.
using MegatronField = std::pair<std::string, std::variant<int, const char*>>;
std::vector<MegatronField> megatron_parallelism(const schedule::Plan& plan);

// What a model has beyond a plain decoder (beyond_plain), as an argument of Megatron-LM and
// as a field of Megatron-Bridge's provider: "--window-size 127,0", window_size = (127, 0). Either is empty
// where it needs none.
struct MegatronProperty {
    std::string argument, field, source;  // the value of the field as Python has it
};
std::vector<MegatronProperty> megatron_properties(const TransformerShape& shape);
// Its optimizer on the host is one, also of one replica.
bool uses_distributed_optimizer(const schedule::Plan& plan);
// The method and number of layers of full recomputation: every layer by itself, or of each stage the first.
std::pair<const char*, int> megatron_full_recomputation(const schedule::Plan& plan);

}  // namespace interop
