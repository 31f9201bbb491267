// Language models of LSTM layers (arXiv 1409.2329): a token table, layers one after another, and logits of
// every token. Gates have two biases, as cuDNN and torch.nn.LSTM keep them. Weights are replicated: no
// tensor-parallel regions.
#pragma once

#include "model/model_graph.h"

namespace model {

struct LstmDescription {
    std::string name, family = "lstm";
    std::int64_t embedding = 0, hidden = 0, layers = 0, vocabulary = 0, sequence_length = 0;
    std::int64_t last_hidden = 0;  // of the last layer; it is the embedding's where the table is tied
    bool is_tied = false;
    double dropout = 0;
};

// A layer is one product of all tokens with the inputs' weights, one product a step with the states', and
// the gates; the time in which a step waits for the launch of its kernels is not in the graph.
ModelGraph build_lstm(const LstmDescription& description);

}  // namespace model
