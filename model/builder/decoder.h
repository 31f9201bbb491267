// Language models of one stack: GPT-2, GPT-3 and Megatron, OPT, BLOOM, MPT, GPT-NeoX/Pythia, GPT-J, Llama,
// Mistral, Qwen, Mixtral, Gemma, DeepSeek, OLMo, gpt-oss, ModernBERT and their like. One layer recipe, their
// differences as data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model_graph.h"

namespace model {

enum class PositionEncoding { learned, rotary, alibi };
enum class NormKind { layer_norm, layer_norm_without_shift, layer_norm_without_parameters, rms_norm };
// Of a layer's norms: before its branches (GPT-2), behind them and before the sum (OLMo 2), or both (Gemma
// 2).
enum class NormPlace { before, behind, both };
// Activations of the feed-forward layer.
enum class Activation { gelu, gelu_tanh, relu, silu, gated_silu, gated_gelu, gated_gelu_tanh };

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries, and keys with values,
// are made of vectors of these ranks; key_value_rank 0 = none, query_rank 0 = queries of the input itself.
struct LatentAttention {
    std::int64_t query_rank = 0, key_value_rank = 0;
    std::int64_t rotary_dimension = 0;  // the part of a head that is rotated: one key for all heads
    std::int64_t value_dimension = 0;   // of a head
    bool has_bias = false;              // of the projections to the latents
};

// Experts beside those that tokens choose, and which layers have any.
struct MixtureDescription {
    std::int64_t experts = 0, experts_per_token = 0;  // 0 = dense
    std::int64_t ffn = 0;                             // of an expert; 0 = the dense layers' width
    std::int64_t interval = 1, dense_layers_first = 0;
    std::vector<std::int64_t> layers;                // the mixtures, where no interval tells
    std::int64_t shared_ffn = 0;                     // of the expert that every token uses, 0 = none
    bool has_shared_gate = false;                    // a sigmoid of the token weighs it (Qwen2-MoE)
    double capacity_factor = 0, auxiliary_loss = 0;  // Attributes
    bool router_has_bias = false, experts_have_bias = false, has_sigmoid_scores = false,
         has_plain_weights = false;
    double routed_scale = 1.0;
    std::int64_t expert_groups = 1, chosen_groups = 1;
    std::optional<double> activation_limit;
    bool is_mixture(std::int64_t layer) const;
};

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
    std::vector<std::int64_t> window_layers;  // those with the window, where no first layer or interval tells
    std::int64_t global_interval = 0;         // of every so many layers the last has no window; 0 = no rule
    bool has_chunks = false;                  // windows are blocks that do not overlap (Llama 4)
    std::vector<std::int64_t> unrotated_layers;  // without any positions
    std::int64_t rotation_interval = 0;        // of every so many layers the last is not rotated; 0 = all are
    std::optional<double> window_rotary_base;  // of layers with a window, where it is another (Gemma 3)
    MixtureDescription mixture;
    double deviation = 0.02;

    bool is_causal = true;
    NormPlace norm_place = NormPlace::before;
    bool has_first_norm = true;  // before the first layer's attention (ModernBERT: not, the embedding has it)
    QueryKeyNorm query_key_norm = QueryKeyNorm::none;
    NormKind query_key_norm_kind = NormKind::rms_norm;
    bool query_key_norm_has_parameters = true, query_key_norm_is_per_head = false;
    LatentAttention latent;
    std::optional<double> score_soft_cap, logit_soft_cap;
    bool has_sinks = false, clips = false;
    double softmax_scale = 0;  // of scores; 0 = 1/sqrt(head_dimension)
    // Factors of the embeddings, of branches before they are added, and of logits (Gemma, Granite, Cohere).
    double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
    bool has_head_transform = false;  // linear, activation and norm before the logits (ModernBERT)
    bool head_transform_has_bias = false;
    std::int64_t prediction_layers =
        0;  // multi-token prediction (DeepSeek-V3): modules behind the last layer
};

ModelGraph build_decoder(const DecoderDescription& description);

}  // namespace model
