// What the name of a training code says: words of it, and the kind of code they mean. What is known of the
// codes is in framework.h (time) and framework_memory.h.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace sim {

enum class FrameworkKind {
    unnamed,
    graph_engine,    // executes a static graph kernel by kernel: TensorFlow, MXNet, OneFlow, PaddlePaddle,
                     // MindSpore
    graph_compiler,  // XLA and frameworks based on it
    hand_written,    // C++ and CUDA: llm.c
    megatron,        // Megatron-LM, Megatron-Core, NeMo and forks
    pytorch,         // and whatever is not known
};

class FrameworkName {
public:
    explicit FrameworkName(std::string_view given);

    FrameworkKind kind() const { return kind_; }
    // No word of the name is known: it is taken for a plain eager PyTorch.
    bool is_unknown() const;
    // Does the name hold one of these parts (lower case)?
    bool is(std::string_view whole) const { return letters_ == whole; }
    bool says(std::initializer_list<std::string_view> parts) const;
    // DeepSpeed's engine, not a baseline that a post of DeepSpeed's compares with; GPT-NeoX trains through
    // it.
    bool is_deepspeed() const { return says({"deepspeed", "neox"}) && !says({"baseline"}); }

private:
    std::string letters_;
    FrameworkKind kind_ = FrameworkKind::unnamed;
};

}  // namespace sim
