// Vision transformers: ViT (arXiv 2010.11929) and Swin (arXiv 2103.14030), images [3, size, size] to one
// label. Weights are replicated: no tensor-parallel regions.
#pragma once

#include <vector>

#include "model/model_graph.h"

namespace model {

struct VitDescription {
    std::string name, family = "vit";
    std::int64_t hidden = 0, layers = 0, heads = 0, ffn = 0, image_size = 224, patch = 16, channels = 3,
                 classes = 1000;
    std::int64_t leading_tokens = 1;  // a class token, and a distillation token behind it (DeiT)
    bool has_qkv_bias = true;
    double epsilon = 1e-6, dropout = 0, attention_dropout = 0;
};
ModelGraph build_vit(const VitDescription& description);

struct SwinDescription {
    std::string name, family = "swin";
    std::int64_t hidden = 0;                  // of the first stage; doubles every stage
    std::vector<std::int64_t> depths, heads;  // one per stage
    std::int64_t image_size = 224, patch = 4, window = 7, channels = 3, classes = 1000, mlp_ratio = 4;
    double epsilon = 1e-5;
};
// The image in patches must be divisible by the window in every stage.
ModelGraph build_swin(const SwinDescription& description);

}  // namespace model
