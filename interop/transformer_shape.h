// The dimensions of a decoder as Megatron-LM's and NeMo's arguments name them, read off the operators of its
// graph.
#pragma once

#include <cstdint>
#include <optional>
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

    // Of multi-head latent attention: the ranks of queries (0: of the input itself) and of keys and values
    // (0: there is none), the part of a head that is rotated, and a head's values.
    std::int64_t query_rank = 0, key_value_rank = 0, rotary_dimension = 0, value_dimension = 0;
    bool is_latent() const { return key_value_rank > 0; }
    bool has_query_key_norm = false;  // over each head, of the kind of the other norms
    bool has_sinks = false;
    // A sliding window of so many tokens (0: none), but in the last of every `global_interval` layers (0: in
    // all).
    std::int64_t window = 0, global_interval = 0;
    std::vector<char> is_mixture;                 // of each layer
    std::int64_t expert_ffn = 0, shared_ffn = 0;  // of one expert, and of that of all tokens (0: none)
    bool has_shared_gate = false;                 // a sigmoid of the token weighs it
    bool has_sigmoid_scores = false, has_plain_weights = false;  // as model::Attributes has them
    double routed_scale = 1;
    std::int64_t expert_groups = 1, chosen_groups = 1;
    std::optional<double> activation_limit;  // gpt-oss's gate, in experts alone

    std::vector<core::Unsupported>
        unsupported;  // properties that these dimensions cannot express: ALiBi, ...
};
TransformerShape transformer_shape(const model::ModelGraph& graph);

// What these dimensions express and no plain GPT, Llama or Mixtral has: latent attention, ...
std::vector<core::Unsupported> beyond_plain(const TransformerShape& shape);

}  // namespace interop
