// The dimensions of a decoder as Megatron-LM's and NeMo's arguments name them, read off the operators of its
// graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/unsupported.h"
#include "model/model_fwd.h"
#include "model/model_graph.h"

namespace interop {

struct TransformerShape {
    std::int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dimension = 0;
    std::int64_t sequence_length = 0, positions = 0,
                 vocabulary = 0;  // positions: rows of a learned table, else 0
    std::int64_t experts = 0, experts_per_token = 0;
    double capacity_factor = 0, auxiliary_loss = 0;  // of mixtures
    bool is_rotary = false, is_rms = false, is_gated_silu = false, is_tied = false;
    bool has_qkv_bias = false, has_linear_bias = false;
    double rotary_fraction = 1, rotary_base = 10000, epsilon = 1e-5;
    double hidden_dropout = 0, attention_dropout = 0;
    std::vector<core::Unsupported>
        unsupported;  // properties that these dimensions cannot express: ALiBi, ...
};
TransformerShape transformer_shape(const model::ModelGraph& graph);

}  // namespace interop
