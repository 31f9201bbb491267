// DeBERTa v2 and v3 (arXiv 2006.03654, 2111.09543): BERT's layers with scores of contents with relative
// positions, and the head of masked tokens. Weights of attention are replicated: no tensor-parallel regions.
#pragma once

#include "model/builder/decoder.h"

namespace model {

struct DebertaDescription {
    std::string name, family = "deberta";
    std::int64_t hidden = 0, layers = 0, heads = 0, head_dimension = 0, ffn = 0, vocabulary = 0,
                 sequence_length = 0;
    std::int64_t embedding = 0;      // columns of the token table
    std::int64_t positions = 0;      // rows of a table of absolute positions; 0: there is none
    std::int64_t token_types = 0;    // 0: no table
    std::int64_t relative_rows = 0;  // of the table of relative positions, twice its span; 0: there is none
    bool has_content_to_position = false, has_position_to_content = false;
    bool shares_position_projections = false;  // contents' projections serve positions too
    bool has_relative_norm = false;
    std::int64_t convolution_kernel = 0, convolution_groups = 1;  // beside the first layer; 0: none
    OperatorKind convolution_activation = OperatorKind::tanh;
    Activation activation = Activation::gelu;
    double epsilon = 1e-7, dropout = 0, attention_dropout = 0, deviation = 0.02;
};

// Products with the table of relative positions are written once a sample, though a micro-batch shares them.
ModelGraph build_deberta(const DebertaDescription& description);

}  // namespace model
