// CLIP (arXiv 2103.00020): an image's and a text's transformer, whose pooled rows are projected and compared.
// Weights are replicated: no tensor-parallel regions.
#pragma once

#include "model/model_graph.h"

namespace model {

struct ClipDescription {
    struct Tower {
        std::int64_t hidden = 0, layers = 0, heads = 0, ffn = 0;
        double epsilon = 1e-5, attention_dropout = 0;
        bool has_quick_gelu = true;  // x sigmoid(1.702 x); else gelu
    };
    std::string name, family = "clip";
    Tower vision, text;
    std::int64_t image_size = 224, patch = 32, channels = 3;
    std::int64_t vocabulary = 0, positions = 77, sequence_length = 77, projection = 512;
};
// A sample's image is compared with its own text: the comparison with the other samples of a batch, which
// the loss of training has, is between samples and not in the graph.
ModelGraph build_clip(const ClipDescription& description);

}  // namespace model
