// The two sub-layers all transformers share, with their parallel regions: attention and feed-forward, input
// to (unnormalised) branch output.
#pragma once

#include "model/builder/decoder.h"
#include "model/builder/graph_builder.h"

namespace model {

struct AttentionLayer {
    Attributes attributes;  // heads, kv_heads, head_dimension, masks, positions, dropout of the probabilities
    bool has_qkv_bias = true, has_output_bias = true;
    double deviation = 0.02, output_deviation = 0.02;
    ParameterId relative_bias;
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
