// Bidirectional encoder (BERT, arXiv 1810.04805): embeddings with norm, post-norm layers, and the head of a
// task.
#pragma once

#include "model/builder/decoder.h"

namespace model {

// pretraining: masked tokens and next sentence. masked_lm: masked tokens only. question_answering: start and
// end of a span. classification: one label of a sequence.
enum class BertTask { pretraining, masked_lm, question_answering, classification };

struct BertDescription {
    std::string name, family = "bert";
    std::int64_t hidden = 0, layers = 0, heads = 0, ffn = 0, vocabulary = 0, positions = 0, token_types = 2,
                 sequence_length = 0;
    std::int64_t position_offset = 0;  // rows of the position table before the first token's (RoBERTa)
    Activation activation = Activation::gelu;
    double epsilon = 1e-12, hidden_dropout = 0.1, attention_dropout = 0.1, deviation = 0.02;
    BertTask task = BertTask::pretraining;
    std::int64_t masked_positions = 0;  // logits of that many gathered tokens only; 0 = of all
    std::int64_t classes = 2;           // of classification
};

ModelGraph build_bert(const BertDescription& description);

}  // namespace model
