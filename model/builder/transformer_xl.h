// Transformer-XL (arXiv 1901.02860): decoder with relative positions over a memory of the segment before,
// adaptive embedding and softmax.
#pragma once

#include <string>

#include "model/model_graph.h"

namespace model {

struct TransformerXlDescription {
    std::string name, family = "transformer_xl";
    std::int64_t hidden = 0, layers = 0, heads = 0, ffn = 0, vocabulary = 0, sequence_length = 0,
                 memory_length = 0;
    std::int64_t width_divisor = 1;  // div_val: each cluster of rarer words has embeddings this much narrower
    double dropout = 0.1, attention_dropout = 0, epsilon = 1e-5, deviation = 0.02;
};
// Ends of the clusters of frequent words (kimiyoung/transformer-xl, wt103).
inline constexpr std::int64_t cluster_ends[] = {19997, 39997, 199997};

ModelGraph build_transformer_xl(const TransformerXlDescription& description);

}  // namespace model
