#include "sim/cost/framework/framework_name.h"

#include <algorithm>
#include <cctype>

namespace sim {

namespace {

FrameworkKind kind_of(const FrameworkName& name) {
    if (name.says(
            {"tensorflow", "keras", "oneflow", "libai", "paddle", "mindspore", "mxnet", "graph engine"}))
        return FrameworkKind::graph_engine;
    if (name.says({"alpa", "jax", "xla", "maxtext", "flax", "praxis", "paxml", "t5x", "levanter", "easylm"}))
        return FrameworkKind::graph_compiler;
    if (name.says({"megatron", "mcore", "nemo", "neox", "zero-bubble", "vtrain"}))
        return FrameworkKind::megatron;
    // "CUDA" alone names no code: "DeepSpeed, CUDA 12" and "PyTorch 2.1, CUDA 11.8" are those.
    if (name.says({"llm.c", "c++"}) && !name.says({"torch", "deepspeed"})) return FrameworkKind::hand_written;
    return FrameworkKind::pytorch;
}

}  // namespace

FrameworkName::FrameworkName(std::string_view given) {
    for (const char letter : given)
        letters_ += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    if (!letters_.empty()) kind_ = kind_of(*this);
}

bool FrameworkName::says(std::initializer_list<std::string_view> parts) const {
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return letters_.find(part) != std::string::npos; });
}

bool FrameworkName::is_unknown() const {
    return kind_ == FrameworkKind::pytorch &&
           !says({"torch",    "fsdp",         "ddp",        "deepspeed", "zero-",         "titan",
                  "hugging",  "transformers", "accelerate", "lightning", "foundry",       "composer",
                  "internlm", "litgpt",       "lit-gpt",    "nanogpt",   "apex",          "ngc",
                  "fairseq",  "fairscale",    "colossal",   "sagemaker", "smdistributed", "smp",
                  "smddp",    "adaptdl",      "fms",        "inductor",  "axolotl",       "nanotron",
                  "mosaic",   "timm",         "mmdet",      "detectron", "horovod"});
}

}  // namespace sim
