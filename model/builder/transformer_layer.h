// The two sub-layers all transformers share, with their parallel regions: attention and feed-forward, input
// to (unnormalised) branch output.
#pragma once

#include "model/builder/decoder.h"
#include "model/builder/graph_builder.h"

namespace model {

struct AttentionLayer {
    Attributes attributes;  // heads, kv_heads, head_dimension, masks, positions, dropout of the probabilities
    bool has_qkv_bias = true, has_output_bias = true;
    bool has_key_bias = true;  // false: queries and values alone (Whisper), three products side by side
    double deviation = 0.02, output_deviation = 0.02;
    ParameterId relative_bias;
    NormKind query_key_norm = NormKind::rms_norm;  // where attributes ask for one
    bool has_norm_parameters = true;
    bool has_norm_per_head = false;  // a scale of its own for every head (StableLM, Cohere)
    double norm_epsilon = 1e-5;      // of the norms inside
    bool clips = false;              // queries, keys and values are clamped (OLMo, DBRX)
    LatentAttention latent;
    bool has_region = true;  // false: replicated weights, no tensor parallelism (vision)
};

struct FeedForward {
    std::int64_t width = 0;
    Activation activation = Activation::gelu;
    bool has_bias = true;
    double dropout = 0;  // between the two linears (T5)
    double deviation = 0.02, output_deviation = 0.02;
    bool has_region = true;
};

// What latent attention keeps of a token: before its parallel region, on every rank alike.
struct LatentTensors {
    TensorId query;  // the layer's input itself where queries have no latent (query_rank 0)
    TensorId key_value, rotary_key;
};
LatentTensors latent_projections(GraphBuilder& builder, TensorId x, const AttentionLayer& layer);
// Enters its region itself; the result is partial.
TensorId latent_attention(GraphBuilder& builder, const LatentTensors& latent, const AttentionLayer& layer,
                          std::int64_t hidden);

// Inside an open region (has_region) from an entered tensor; the result is partial. The caller enters and
// exits, so two branches may share both.
TensorId self_attention(GraphBuilder& builder, TensorId entered, const AttentionLayer& layer);
TensorId cross_attention(GraphBuilder& builder, TensorId entered, TensorId entered_memory,
                         const AttentionLayer& layer);
TensorId feed_forward(GraphBuilder& builder, TensorId entered, const FeedForward& layer);
TensorId activate(GraphBuilder& builder, const std::string& name, TensorId x, Activation activation);
bool is_gated(Activation activation);
OperatorKind kind_of(Activation activation);
bool is_tanh_approximation(Activation activation);

// Token table split over the vocabulary, looked up inside a region, summed on exit.
TensorId embed_tokens(GraphBuilder& builder, TensorId ids, ParameterId table);
ParameterId token_table(GraphBuilder& builder, std::int64_t vocabulary, std::int64_t hidden,
                        double deviation);

}  // namespace model
