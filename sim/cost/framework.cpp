#include "sim/cost/framework.h"

#include <cctype>

namespace sim {

namespace {

bool has(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

// Host work without a published figure: sources say launch-bound from a few microseconds a kernel (C++ engines) to tens (Python with hooks).
FrameworkTraits eager_pytorch(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "PyTorch (eager)";
    traits.converts_layout = true;
    traits.dispatch = core::microseconds(c.dispatch_eager_us);
    traits.blocked_per_step = core::milliseconds(c.step_eager_ms);
    traits.memory_passes = c.passes_eager;
    // FSDP's flat parameters: gradients are concatenated into one vector (4 bytes), cast (6), divided (8): 18 bytes a parameter in fp32 reduction.
    traits.sharded_gradient_bytes = 18;
    traits.keeps_full_parameters = true;
    return traits;
}

// Megatron-LM (arXiv 2104.04473, section 4.2): fused scale, mask and softmax; bias with GeLU; bias, dropout and residual.
FrameworkTraits megatron(const CostConstants& c) {
    FrameworkTraits traits = eager_pytorch(c);
    traits.name = "Megatron-LM";
    traits.has_fused_dropout_add = true;
    traits.keeps_full_parameters = false;
    traits.attention = model::AttentionImplementation::fused_softmax;
    traits.vocabulary_multiple = 128;
    traits.overlaps_reduction = false;  // local DDP reduces after the backward pass
    traits.blocks_on_transfers = true;
    traits.scatters_activations = traits.scatters_gradients = true;
    traits.memory_passes = c.passes_megatron;
    traits.dispatch = core::microseconds(c.dispatch_megatron_us);
    traits.blocked_per_micro_batch = core::milliseconds(c.micro_batch_megatron_ms);
    traits.blocked_per_step = core::milliseconds(c.step_megatron_ms);
    return traits;
}

// Compilers of whole graphs (XLA): chains of elementwise operations become one kernel; the host only starts the program.
FrameworkTraits graph_compiler(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "XLA";
    traits.has_fused_dropout_add = true;
    traits.has_fused_norm_relu = true;
    traits.attention = model::AttentionImplementation::fused_softmax;
    traits.memory_passes = c.passes_xla;
    traits.dispatch = core::microseconds(3);
    traits.overlaps_reduction = traits.overlaps_parameter_gathering = false;
    traits.splits_by_layers = false;
    return traits;
}

// Engines that execute a static graph kernel by kernel from C++.
FrameworkTraits graph_engine(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "graph engine";
    traits.dispatch = core::microseconds(c.dispatch_graph_us);
    traits.keeps_full_parameters = true;
    traits.wide_elementwise = c.wide_elementwise;
    traits.memory_passes = c.passes_graph;
    return traits;
}

}  // namespace

FrameworkTraits framework_traits(std::string_view given, const CostConstants& c) {
    std::string name;
    for (char c : given) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (name.empty()) return {};
    if (has(name, "alpa") || has(name, "jax")) {
        FrameworkTraits traits = graph_compiler(c);
        traits.applies_dropout = false;
        traits.dense_dispatch_group = 1024;
        return traits;
    }
    if (has(name, "megatron-deepspeed") || has(name, "vtrain")) {
        FrameworkTraits traits = megatron(c);
        traits.name = "Megatron-DeepSpeed";
        traits.flattened_bytes = 2;
        traits.shard_gradient_bytes = 4;
        // CUDA 10 and 11.0 to 11.6 load every kernel when they start (no lazy loading): 1 GiB and more above the context of today.
        traits.process_memory = core::gibibytes(c.eager_loading_gib);
        traits.scatters_gradients = false;  // DeepSpeed's pipe module partitions activations only
        traits.accumulation_bytes = 6;
        if (has(name, "vtrain")) {
            traits.dispatch = core::microseconds(c.dispatch_vtrain_us);
            traits.blocked_per_micro_batch = core::milliseconds(c.micro_batch_vtrain_ms);
        } else {
            traits.dispatch = core::microseconds(c.dispatch_megatron_deepspeed_us);
        }
        return traits;
    }
    if (has(name, "zero-bubble")) {
        FrameworkTraits traits = megatron(c);
        traits.accumulation_bytes = 10;
        return traits;
    }
    if (has(name, "nemo")) {
        FrameworkTraits traits = megatron(c);
        traits.name = "NeMo";
        traits.accumulation_bytes = 10;
        return traits;
    }
    if (has(name, "megatron")) {
        FrameworkTraits traits = megatron(c);
        if (has(name, "torch ddp")) traits.overlaps_reduction = true;
        return traits;
    }
    if (has(name, "llm.c")) {
        FrameworkTraits traits;
        traits.name = "llm.c";
        traits.dispatch = core::microseconds(4);
        traits.has_fused_loss = true;
        traits.has_fused_dropout_add = true;
        traits.applies_dropout = false;
        return traits;
    }
    if (has(name, "internlm")) {
        FrameworkTraits traits = eager_pytorch(c);
        traits.name = "InternLM";
        traits.broadcast_step = core::microseconds(c.broadcast_hop_us);
        traits.keeps_full_parameters = false;
        traits.flash_generation = 1;
        traits.applies_dropout = false;
        return traits;
    }
    if (has(name, "foundry") || has(name, "composer")) {
        FrameworkTraits traits = eager_pytorch(c);
        traits.name = "llm-foundry";
        traits.keeps_full_parameters = false;
        traits.flash_generation = 1;
        traits.applies_dropout = false;
        return traits;
    }
    if (has(name, "xla")) {
        FrameworkTraits traits = graph_compiler(c);
        traits.overlaps_reduction = true;
        traits.wide_elementwise = c.wide_elementwise;
        traits.memory_passes = c.passes_graph;
        return traits;
    }
    if (has(name, "mxnet")) {
        FrameworkTraits traits = graph_engine(c);
        traits.name = "MXNet";
        traits.has_fused_norm_relu = has(name, "ngc");
        return traits;
    }
    if (has(name, "tensorflow") || has(name, "oneflow") || has(name, "paddle")) {
        FrameworkTraits traits = graph_engine(c);
        traits.has_fused_norm_relu = has(name, "oneflow");
        // TensorFlow 1 writes GeLU, layer norm and dropout as chains of kernels: 11 passes for 2, 8 for 2, 10 for 2.5. NVIDIA's BERT scripts compile with XLA.
        if (has(name, "tensorflow 1.x")) traits.composed_elementwise = 4.5;
        if (has(name, "horovod")) traits.accumulation_bytes = 56;  // unscale, all-finite test, clip and assign_add of fp32 gradients: 14 passes
        return traits;
    }
    if (has(name, "adaptdl")) {
        FrameworkTraits traits = eager_pytorch(c);
        traits.name = "PyTorch (AdaptDL)";
        traits.blocked_per_tensor = core::microseconds(c.tensor_adaptdl_us);
        // Pods of a container network: NCCL opens one flow between two nodes there.
        traits.tcp_flows = 1;
        traits.tcp_flow_rate = core::gigabytes_per_second(c.container_flow_gbs);
        traits.tcp_step = core::microseconds(c.container_step_us);
        traits.step_bytes = 176;  // 11 passes of 16 bytes: statistics of the gradients (clone, square, sums) beside the update
        traits.has_separate_bias = true;
        traits.memory_passes = c.passes_eager_2020;
        traits.has_multi_tensor_update = false;
        return traits;
    }
    if (has(name, "ngc")) {
        FrameworkTraits traits = eager_pytorch(c);
        traits.name = "PyTorch (NGC)";
        traits.converts_layout = false;
        if (has(name, "20.0") || has(name, "19.")) {
            traits.has_separate_bias = true;
            traits.memory_passes = c.passes_eager_2020;
            traits.keeps_full_parameters = false;  // apex O2: half-precision model, fp32 master weights in the optimizer
        }
        return traits;
    }
    if (has(name, "fms") || has(name, "titan") || has(name, "compile")) {
        FrameworkTraits traits = eager_pytorch(c);
        traits.name = "PyTorch (compiled)";
        traits.has_fused_dropout_add = true;
        traits.applies_dropout = false;
        return traits;
    }
    FrameworkTraits traits = eager_pytorch(c);
    if (has(name, "2020") || has(name, "baseline of the deepspeed")) {
        traits.has_separate_bias = true;
        traits.memory_passes = c.passes_eager_2020;
        traits.keeps_full_parameters = false;
    }
    return traits;
}

void adopt(const FrameworkTraits& traits, schedule::Plan& plan) {
    plan.overlaps_gradient_reduction = traits.overlaps_reduction;
    plan.overlaps_parameter_gathering = traits.overlaps_parameter_gathering;
    const bool is_half = plan.precision.compute == core::DataType::fp16 || plan.precision.compute == core::DataType::bf16;
    // FSDP and ZeRO gather parameters in the compute type.
    if (is_half && traits.keeps_full_parameters && plan.sharding == schedule::Sharding::none)
        plan.precision = {.compute = plan.precision.compute, .parameters = core::DataType::fp32, .gradients = core::DataType::fp32, .has_master_parameters = false};
    plan.gradient_bucket = traits.bucket;
    plan.fused_cross_entropy = traits.has_fused_loss;
    if (traits.reduction) plan.precision.gradients = *traits.reduction;
}

}  // namespace sim
