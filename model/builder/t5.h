// Encoder-decoder (T5, arXiv 1910.10683; v1.1 with gated feed-forward and untied head).
#pragma once

#include "model/builder/decoder.h"

namespace model {

struct T5Description {
    std::string name, family = "t5";
    std::int64_t hidden = 0, encoder_layers = 0, decoder_layers = 0, heads = 0, head_dimension = 0, ffn = 0,
                 vocabulary = 0;
    std::int64_t encoder_sequence_length = 0, decoder_sequence_length = 0;
    std::int64_t relative_buckets = 32, relative_distance = 128;
    Activation activation = Activation::relu;
    bool is_tied = true;
    double epsilon = 1e-6, dropout = 0.1, deviation = 0.02;
};

ModelGraph build_t5(const T5Description& description);

}  // namespace model
