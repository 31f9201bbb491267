#include "sim/cost/framework/framework.h"

#include "core/diagnostics.h"
#include "sim/cost/framework/framework_name.h"

namespace sim {

namespace {

// Host work without a published figure: sources say launch-bound from a few microseconds a kernel (C++
// engines) to tens (Python with hooks).
FrameworkTraits eager_pytorch(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "PyTorch (eager)";
    traits.image_layout = ImageLayout::channels_first;
    traits.dispatch = core::microseconds(c.dispatch_eager_us);
    traits.blocked_per_step = core::milliseconds(c.step_eager_ms);
    traits.memory_passes = c.passes_eager;
    // FSDP's flat parameters: gradients are concatenated into one vector (4 bytes), cast (6), divided (8): 18
    // bytes a parameter in fp32 reduction.
    traits.sharded_gradient_bytes = 18;
    traits.keeps_full_parameters = true;
    return traits;
}

// Megatron-LM (arXiv 2104.04473, section 4.2): fused scale, mask and softmax; bias with GeLU; bias, dropout
// and residual.
FrameworkTraits megatron(const CostConstants& c) {
    FrameworkTraits traits = eager_pytorch(c);
    traits.name = "Megatron-LM";
    traits.has_fused_dropout_add = true;
    traits.keeps_full_parameters = false;
    traits.attention = model::AttentionImplementation::fused_softmax;
    traits.skips_masked_scores = true;
    traits.vocabulary_multiple = 128;
    traits.overlaps_reduction = false;  // local DDP reduces after the backward pass
    traits.blocks_on_transfers = true;
    traits.gathers_by_tensor =
        true;  // a plan that shards parameters under Megatron-LM's kernels does so by DeepSpeed
    traits.least_sharded_elements = 100'000;  // its stage3_param_persistence_threshold
    traits.scatters_activations = traits.scatters_gradients = true;
    traits.memory_passes = c.passes_megatron;
    traits.dispatch = core::microseconds(c.dispatch_megatron_us);
    traits.blocked_per_micro_batch = core::milliseconds(c.micro_batch_megatron_ms);
    traits.blocked_per_step = core::milliseconds(c.step_megatron_ms);
    return traits;
}

// Compilers of whole graphs (XLA): chains of elementwise operations become one kernel; the host only starts
// the program.
FrameworkTraits graph_compiler(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "XLA";
    traits.pads_products = true;  // its pass CublasPadForGemms
    traits.vocabulary_multiple = 8;
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

FrameworkTraits graph_engine_of(const FrameworkName& name, const CostConstants& c) {
    FrameworkTraits traits = graph_engine(c);
    if (name.says({"mxnet"})) {
        traits.name = "MXNet";
        // NVIDIA/DeepLearningExamples@1bd98ac, MxNet/Classification/RN50v1.5/runner: fused batch norm and
        // channels last with float16 only.
        traits.has_fused_norm_relu = name.says({"ngc"});
        traits.image_layout = ImageLayout::channels_last_in_half;
        traits.fuses_norm_relu_in_half_only = true;  // cuDNN's
        traits.fuses_pointwise = true;               // MXNET_USE_FUSION, on by default since 1.6
        return traits;
    }
    traits.has_fused_norm_relu = name.says({"oneflow", "fused batch norm"});
    if (name.says({"tensorflow"})) {
        traits.name = "TensorFlow";
        // NVIDIA's own BERT scripts and TensorFlow 2 compile clusters of operations with XLA; release 1 by
        // itself writes GeLU, layer norm and dropout as chains of kernels: 11 passes for 2, 8 for 2, 10
        // for 2.5; under automatic mixed precision each in fp32 between casts (8 + 1.4 bytes for 4).
        const bool is_compiled = name.says({"xla", "horovod", "tensorflow 2", "tensorflow2"});
        // XLA writes a softmax with the scale and mask before it as one pass.
        if (is_compiled) traits.attention = model::AttentionImplementation::fused_softmax;
        if (!is_compiled) {
            traits.composed_elementwise = 4.5;
            traits.wide_elementwise = 2.35;
            // google-research/bert@02102db, optimization.py: Adam out of multiply, add, square, sqrt, divide
            // and assign, 39 passes over fp32 tensors a parameter (m 7, v 9, quotient 7, decay 5, step 5,
            // three assignments 6), and clip_by_global_norm 3, where one pass over the state reads and
            // writes 7.
            traits.composed_update_bytes = 4 * (39 + 3 - 7);
            traits.update_kernels_per_tensor = 20;
        }
        if (name.says({"horovod"}))
            traits.accumulation_bytes =
                56;  // unscale, all-finite test, clip and assign_add of fp32 gradients: 14 passes
    }
    return traits;
}

FrameworkTraits graph_compiler_of(const FrameworkName& name, const CostConstants& c) {
    FrameworkTraits traits = graph_compiler(c);
    traits.applies_dropout = false;
    // XLA's latency-hiding scheduler for GPUs is of 2023.
    if (name.says({"2023", "2024", "2025", "maxtext"}))
        traits.overlaps_reduction = traits.overlaps_parameter_gathering = true;
    // Between meshes each device of a stage sends its part, and the receivers gather theirs over fast links
    // (Alpa, arXiv 2201.12023, section 6; GSPMD's collective permutes move shards as well).
    traits.scatters_activations = traits.scatters_gradients = true;
    traits.dense_dispatch_group = 1024;
    // Experts are created and updated in fp32 and cast where they are used: the published peaks hold 12 bytes
    // a parameter, not 16.
    traits.keeps_full_mixtures = true;
    return traits;
}

FrameworkTraits hand_written(const CostConstants& c) {
    FrameworkTraits traits;
    traits.name = "C++ and CUDA";
    traits.vocabulary_multiple = 128;
    traits.dispatch = core::microseconds(c.dispatch_graph_us);
    traits.has_fused_loss = true;
    traits.has_fused_dropout_add = true;
    // karpathy/llm.c, 2024, from memory: llmc/layernorm.cuh (fused_residual_forward, layernorm_backward);
    // train_gpt2.cu, -ge: GELU's fusion is on by default from sm_90.
    traits.has_fused_residual_norm = traits.has_fused_gelu = true;
    traits.applies_dropout = false;
    traits.attention =
        model::AttentionImplementation::flash;  // llm.c: cuDNN's, with which its scripts are built
    return traits;
}

FrameworkTraits megatron_of(const FrameworkName& name, const CostConstants& c) {
    FrameworkTraits traits = megatron(c);
    // --async-tensor-model-parallel-allreduce came to Megatron-LM in 2022 and is its default since 3.0; forks
    // of before do without.
    traits.overlaps_input_gradients =
        name.says({"nemo", "vtrain", "megatron-core", "megatron core", "megatron-lm 2022", "2023", "2024",
                   "2025", "megatron-lm v"});
    // FlashAttention of Transformer Engine, whose layers Megatron-Core and NeMo of 2024 and later use.
    if (name.says({"transformer engine", "megatron-core", "megatron core", "mcore", "2024", "2025", "nemo 2",
                   "nemo 24", "nemo 25"}))
        traits.attention = model::AttentionImplementation::flash;
    if (name.says({"2022", "23.01", "23.03", "23.05"}))
        traits.attention_kernel = AttentionKernel::flash_1;  // version 2 is of July 2023
    if (name.is_deepspeed() || name.says({"vtrain"})) {
        traits.name = "Megatron-DeepSpeed";
        traits.accumulation_bytes = 6;
        traits.dispatch =
            core::microseconds(name.says({"vtrain"}) ? c.dispatch_vtrain_us : c.dispatch_megatron_us);
        return traits;
    }
    // --no-gradient-accumulation-fusion is of 2022-02-16: fused is the default since, and with Transformer
    // Engine always.
    traits.fuses_accumulation = traits.overlaps_input_gradients || name.says({"zero-bubble"});
    if (name.says({"nemo"})) traits.name = "NeMo";
    // Transformer Engine's layers: cuDNN's attention on Hopper, and in NeMo's recipes user buffers.
    if (traits.attention == model::AttentionImplementation::flash) {
        traits.attention_kernel = AttentionKernel::cudnn;
        traits.overlaps_tensor_products = name.says({"nemo"});
        traits.casts_fp8_weights_once = traits.casts_fp8_in_norm = true;
    }
    if (name.says({"torch ddp"})) traits.overlaps_reduction = true;
    return traits;
}

FrameworkTraits pytorch_of(const FrameworkName& name, const CostConstants& c) {
    FrameworkTraits traits = eager_pytorch(c);
    traits.composes_llama_kernels = true;
    const bool is_old = name.says({"2019", "2020", "19.", "20.0", "adaptdl", "baseline of the deepspeed"});
    if (is_old) {
        traits.has_separate_bias = true;
        traits.half_passes = c.passes_eager_2020;
    }
    if (name.says({"ngc", "apex"})) {
        traits.name = "PyTorch (NGC)";
        traits.image_layout = ImageLayout::channels_last;
        traits.vocabulary_multiple = 8;  // "padding for divisibility by 8" in their scripts
        // NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/run_pretraining.py of 2020: apex's
        // DistributedDataParallel with message_size = 250,000,000 elements: for BERT, reductions begin when
        // the backward pass is over.
        constexpr double message_elements = 250e6, element_bytes = 4;
        if (is_old || name.says({"apex"})) traits.bucket = core::Bytes(message_elements * element_bytes);
    }
    // apex O2, and NVIDIA's BERT of 2021 by itself: half-precision model, fp32 master weights in the
    // optimizer.
    if ((is_old || name.says({"apex"})) && !name.says({"ddp", "adaptdl"}))
        traits.keeps_full_parameters = false;
    traits.unscales_every_micro_batch = is_old && name.says({"apex"});
    if (name.says({"adaptdl"})) {
        traits.name = "PyTorch (AdaptDL)";
        traits.blocked_per_tensor = core::microseconds(c.tensor_adaptdl_us);
        // Pods of a container network: NCCL opens one flow between two nodes there.
        traits.tcp_flows = 1;
        traits.tcp_flow_rate = core::gigabytes_per_second(c.container_flow_gbs);
        traits.tcp_step = core::microseconds(c.container_step_us);
        traits.step_bytes = 176;  // 11 passes of 16 bytes: statistics of the gradients (clone, square, sums)
                                  // beside the update
        traits.has_multi_tensor_update = false;
    }
    // Others pin their batches and copy them beside the compute, as PyTorch's ImageNet example does.
    traits.copies_inputs = name.says({"adaptdl"});
    traits.copies_into_buckets = true;
    // F.scaled_dot_product_attention of PyTorch 2, or flash-attn: the models of these codes know nothing
    // else.
    if (name.says({"sdpa", "flash", "titan", "fms", "fsdp2", "foundry", "composer", "internlm", "litgpt",
                   "lit-gpt", "nanogpt", "2024", "2025"}))
        traits.attention = model::AttentionImplementation::flash;
    if (name.says({"compile", "fms", "inductor"})) {
        // Chains of elementwise operations become one kernel; layers are still started by the interpreter.
        traits.name = "PyTorch (compiled)";
        traits.pads_products = true;  // torch._inductor.config.shape_padding
        traits.vocabulary_multiple = 8;
        traits.composes_llama_kernels = false;
        traits.has_fused_dropout_add = true;
        traits.applies_dropout = false;
    }
    if (name.says({"nanogpt"})) traits.vocabulary_multiple = 64;  // its default of 50304 words
    // FSDP's codes wrap layers in non-reentrant checkpoints, which since PyTorch 2.1 stop early
    // (docs.pytorch.org, torch.utils.checkpoint, set_checkpoint_early_stop).
    traits.stops_recomputation_early = name.says({"fsdp", "titan", "fms", "foundry", "composer"});
    if (name.says({"fsdp", "titan"}))
        traits.applies_dropout = false;  // trainers of large models of 2023 and later go without
    if (name.says({"titan"})) {
        // torchtitan's defaults: mixed_precision_reduce = float32; selective_ac_option = "op" keeps attention
        // and every other product, and runs the rest again.
        traits.reduction = core::DataType::fp32;
        traits.recomputes_alternate_products = true;
    }
    if (name.is_deepspeed()) {
        traits.name = "DeepSpeed";
        traits.gathers_by_tensor = true;
        traits.least_sharded_elements = 100'000;  // stage3_param_persistence_threshold
        traits.keeps_full_parameters = false;
        // ZeRO-3 of 2021 (runtime/zero/partition_parameters.py): all_gather into a list of narrowed views, of
        // which torch's ProcessGroupNCCL copies each: view, stream record and copy. Layers larger than
        // stage3_prefetch_bucket_size (5e7 elements) were gathered when they were needed.
        if (name.says({"2021"}) || name.is("deepspeed zero-3")) {
            constexpr double operations_an_entry = 3;
            traits.list_entry =
                core::microseconds(operations_an_entry * c.dispatch_eager_us * c.newer_host_time);
            traits.overlaps_parameter_gathering = traits.overlaps_reduction = false;
        }
        // Its transformer kernels fuse what Megatron-LM's do (DeepSpeed, "fastest BERT training", 2020).
        if (name.says({"kernel", "fused"})) {
            traits.has_separate_bias = false;
            traits.has_fused_dropout_add = true;
            traits.half_passes = 1;
            traits.memory_passes = c.passes_megatron;
            traits.attention = model::AttentionImplementation::fused_softmax;
        }
    }
    if (name.says({"internlm", "zero-1"})) {
        traits.keeps_full_parameters = false;
        traits.composes_llama_kernels = false;  // fused norms and rotary kernels of apex and flash-attn
        traits.applies_dropout = false;
    }
    if (name.says({"internlm"})) {
        traits.name = "InternLM";
        traits.broadcasts_parameters = true;
        traits.bucket = core::mebibytes(512);  // reduce_bucket_size of its configurations
    }
    if (name.says({"foundry", "composer"})) {
        traits.name = "llm-foundry";
        traits.has_fused_loss = true;  // loss_fn: fused_crossentropy by default; runs at the edge of memory
                                       // (50,368 logits a token) would not fit with another
        traits.keeps_full_parameters = false;
        traits.applies_dropout = false;
    }
    // FlashAttention 1 or its Triton sibling: code of the first half of 2023 and before.
    if (name.says({"internlm", "foundry", "composer", "flashattention 1", "flash-attention 1"}))
        traits.attention_kernel = AttentionKernel::flash_1;
    return traits;
}

}  // namespace

FrameworkTraits framework_traits(std::string_view given, const CostConstants& c) {
    const FrameworkName name(given);
    switch (name.kind()) {
        case FrameworkKind::unnamed: return {};
        case FrameworkKind::graph_engine: return graph_engine_of(name, c);
        case FrameworkKind::graph_compiler: return graph_compiler_of(name, c);
        case FrameworkKind::hand_written: return hand_written(c);
        case FrameworkKind::megatron: return megatron_of(name, c);
        case FrameworkKind::pytorch: return pytorch_of(name, c);
    }
    throw core::InternalError("broken promise: every kind of framework has traits");
}

void adopt(const FrameworkTraits& traits, schedule::Plan& plan, bool has_experts) {
    plan.overlaps_gradient_reduction = traits.overlaps_reduction;
    plan.overlaps_parameter_gathering = traits.overlaps_parameter_gathering;
    const bool is_half =
        plan.precision.compute == core::DataType::fp16 || plan.precision.compute == core::DataType::bf16;
    // FSDP and ZeRO gather parameters in the compute type.
    // XLA's partitioner gathers what the product reads: the cast of the shard, not its fp32 values.
    if (is_half && traits.keeps_full_mixtures && has_experts &&
        plan.sharding == schedule::Sharding::parameters)
        plan.precision.gradients = core::DataType::fp32;
    else if (is_half && ((traits.keeps_full_parameters && plan.sharding == schedule::Sharding::none) ||
                         (traits.keeps_full_mixtures && has_experts)))
        plan.precision = {.compute = plan.precision.compute,
                          .parameters = core::DataType::fp32,
                          .gradients = core::DataType::fp32,
                          .has_master_parameters = false};
    plan.gradient_bucket = traits.bucket;
    plan.fused_cross_entropy = traits.has_fused_loss;
    if (traits.reduction) plan.precision.gradients = *traits.reduction;
}

}  // namespace sim
