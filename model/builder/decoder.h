// Decoder-only language models: GPT-2, GPT-3 and Megatron, OPT, BLOOM, MPT, GPT-NeoX/Pythia, GPT-J, Llama,
// Mistral, Qwen2, Mixtral. One layer recipe, their differences as data.
#pragma once

#include <cstdint>
#include <string>

#include "model/model_graph.h"

namespace model {

enum class PositionEncoding { learned, rotary, alibi };
enum class NormKind { layer_norm, layer_norm_without_shift, rms_norm };
// Activations of the feed-forward layer.
enum class Activation { gelu, gelu_tanh, relu, silu, gated_silu, gated_gelu, gated_gelu_tanh };

struct DecoderDescription {
    std::string name, family;
    std::int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dimension = 0, ffn = 0, vocabulary = 0;
    std::int64_t positions = 0;  // rows of the learned table (offset included); unused otherwise
    std::int64_t position_offset = 0;
    std::int64_t sequence_length = 0;
    PositionEncoding encoding = PositionEncoding::learned;
    double rotary_fraction = 1.0, rotary_base = 10000.0;
    NormKind norm = NormKind::layer_norm;
    Activation activation = Activation::gelu;
    double epsilon = 1e-5;
    bool has_qkv_bias = true, has_attention_output_bias = true, has_mlp_bias = true, has_head_bias = false;
    bool is_tied = true;              // output embedding = input embedding
    bool has_embedding_norm = false;  // BLOOM
    bool is_parallel_residual =
        false;                 // attention and feed-forward read the same layer input (GPT-NeoX, GPT-J)
    bool shares_norm = false;  // and the same norm (GPT-J)
    double embedding_dropout = 0, hidden_dropout = 0, attention_dropout = 0;
    std::int64_t window = 0, first_window_layer = 0;  // sliding window (0 = none) from this layer on
    std::int64_t experts = 0, experts_per_token = 0;  // 0 = dense
    std::int64_t expert_interval = 1;                 // every how manieth layer is a mixture
    double capacity_factor = 0, auxiliary_loss = 0;   // of mixtures: Attributes
    double deviation = 0.02;
};

ModelGraph build_decoder(const DecoderDescription& description);

}  // namespace model
