#include "sim/cost/framework/framework_memory.h"

#include "sim/cost/framework/framework_name.h"

namespace sim {

namespace {

// Megatron-LM casts its half-precision gradients to fp32 for the update, all at once
// (Float16OptimizerWithFloat16Params); with bf16 it sums them in fp32 (accumulate_allreduce_grads_in_fp32 is
// then forced on). Besides the groups of the plan it makes one of each model replica and one of all ranks.
FrameworkMemory megatron() {
    FrameworkMemory memory;
    memory.has_in_place_loss = true;
    memory.bf16_accumulator_bytes = 2;
    memory.update_bytes = memory.sharded_update_bytes = 4;
    memory.has_model_communicator = memory.has_whole_job_communicator = true;
    return memory;
}

}  // namespace

FrameworkMemory framework_memory(std::string_view given, const CostConstants& constants) {
    const FrameworkName name(given);
    FrameworkMemory memory;
    if (name.kind() == FrameworkKind::unnamed) return memory;
    if (name.kind() == FrameworkKind::graph_compiler) {
        // XLA plans all buffers of the step ahead; its combined reductions come after the whole backward
        // pass.
        memory.keeps_whole_gradients = true;
        memory.has_kernel_workspace = false;
        memory.caches_blocks = false;
        // Alpa's mixtures: not stated by the source, but six measured peaks agree with it, and two of them
        // have no room for more (ZeRO-2 over four V100: weights alone would take 10 of 13.6 GiB in fp32).
        memory.keeps_mixtures_in_half = name.says({"alpa"});
        return memory;
    }
    if (name.says({"vtrain"})) return megatron();  // none of its runs shards: the optimizer is Megatron-LM's
    if (name.is_deepspeed()) {
        if (name.kind() == FrameworkKind::megatron) memory = megatron();
        memory.keeps_stage_outputs = true;
        memory.reduction_bucket_elements =
            5e8;  // DeepSpeed's defaults of reduce_bucket_size and stage3_max_live_parameters
        memory.live_parameter_elements = 1e9;
        // FP16_Optimizer lists all gradients in fp32 and flattens the list: 8. ZeRO-1 flattens those of its
        // shard in fp16 and casts them: 6. BF16_Optimizer sums in fp32 beside the bf16 gradients: 4 whole,
        // and 4 of the shard while it updates.
        memory.update_bytes = 8;
        memory.sharded_update_bytes = 6;
        memory.bf16_accumulator_bytes = 4;
        memory.bf16_update_bytes = 4;
        // ZeRO-1 of 2021 (stage1.py) flattened every gradient to scatter them when no pipeline reduced them
        // in buckets.
        if (name.says({"2021", "2020"})) memory.flattened_bytes = 2;
        // CUDA 10 and 11.0 to 11.6 load every kernel when they start (no lazy loading): 1 GiB and more above
        // the context of today.
        memory.process_memory = core::gibibytes(constants.eager_loading_gib);
        return memory;
    }
    if (name.says({"zero-bubble", "nemo"})) {
        memory = megatron();
        memory.has_own_weight_gradients = false;  // gradient accumulation fusion into fp32 sums
        memory.accumulator_bytes = 2;
        memory.bf16_accumulator_bytes = 0;
        memory.update_bytes = memory.sharded_update_bytes = 0;
        return memory;
    }
    if (name.kind() == FrameworkKind::megatron) {
        memory = megatron();
        memory.keeps_stage_outputs = name.says({"2020", "2021", "8aa4619"});
        return memory;
    }
    if (name.kind() == FrameworkKind::hand_written) {
        memory.has_own_weight_gradients = false;  // products accumulate
        memory.caches_blocks = false;
        return memory;
    }
    if (name.kind() == FrameworkKind::graph_engine) {
        memory.casts_parameters = true;
        return memory;
    }
    // PyTorch: DDP copies gradients into buckets; autocast keeps casts of the weights; updates over lists of
    // tensors take a list of temporaries.
    memory.copies_gradients_into_buckets = true;
    memory.casts_parameters = true;
    memory.update_bytes = memory.sharded_update_bytes = 4;
    if (name.says({"foundry", "composer"}))
        memory.update_bytes = memory.sharded_update_bytes = 0;  // its AdamW updates tensor by tensor
    if (name.says({"internlm"})) memory.has_whole_job_communicator = true;
    return memory;
}

}  // namespace sim
