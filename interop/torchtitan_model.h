// The source of a model as torchtitan's own classes have it (0.3.0), with the dimensions of a plan's.
#pragma once

#include <string>
#include <vector>

#include "core/unsupported.h"
#include "interop/transformer_shape.h"

namespace interop {

// Llama, and Qwen3, which has norms of queries and keys, turns halves of a head instead of pairs, and may
// have experts: the name of its module, what its classes begin with, its function that divides it, and its
// rotation.
struct TorchtitanFamily {
    const char *name, *prefix, *parallelize, *rope;
};
const TorchtitanFamily& torchtitan_family(const TransformerShape& shape);

// What none of them has.
std::vector<core::Unsupported> torchtitan_lacks(const TransformerShape& shape);

// The lines of a module's imports, and those of its `model()`.
std::string torchtitan_imports(const TransformerShape& shape);
std::string torchtitan_model(const TransformerShape& shape);

}  // namespace interop
