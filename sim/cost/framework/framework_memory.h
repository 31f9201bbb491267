// What training frameworks hold on a device beyond what a plan implies: copies of gradients, temporaries of
// the update, outputs of pipeline stages, communicators. Facts of profiles, as framework.h's.
#pragma once

#include "core/units.h"

namespace sim {

struct FrameworkMemory {
    // Of the traits, so that time and memory rest on one fact: weight gradients are added by the product that
    // makes them, so none stands beside the sum; autograd keeps the casts of fp32 parameters.
    bool fuses_accumulation = false, keeps_full_parameters = false;
    // Of the traits as well: what operator-level recomputation keeps and runs again.
    bool recomputes_alternate_products = false;

    // Workspace and activations.
    bool has_kernel_workspace =
        true;  // see model/operators/workspace.h; false: fused away, or in memory not yet in use
    bool has_in_place_loss = false;
    bool keeps_stage_outputs = false;  // tensors sent by a stage stay until its backward pass (DeepSpeed;
                                       // Megatron-LM before it freed outputs in 2022)

    // Gradients and update, bytes per parameter.
    bool copies_gradients_into_buckets =
        false;  // torch DDP without gradient_as_bucket_view: buckets beside the gradients
    double reduction_bucket_elements =
        0;  // DeepSpeed: reduce_bucket_size, when the optimizer is sharded and replicas reduce
    double live_parameter_elements =
        0;  // DeepSpeed's ZeRO-3: stage3_max_live_parameters, gathered and kept for reuse
    double accumulator_bytes = 0;       // sums of gradients beside the Program's, in a wider type
    double bf16_accumulator_bytes = 0;  // ... of bf16 training
    double flattened_bytes = 0;  // of a ZeRO-1 reduction without pipeline that flattens all gradients first
    bool keeps_whole_gradients =
        false;  // reductions come after the backward pass: sharded gradients are whole until then
    double update_bytes = 0, sharded_update_bytes = 0,
           bf16_update_bytes = 0;         // temporaries of the update, of the parameters it updates
    bool keeps_mixtures_in_half = false;  // models with mixtures of experts: weights, gradients and both
                                          // moments in 2 bytes each, no master weights

    // Outside the tensors.
    bool caches_blocks = true;  // an allocator that keeps freed blocks: what it has reserved is what it
                                // reports, and what nvidia-smi sees
    bool has_model_communicator =
        false;  // over the ranks of one replica of the model (norm of the gradients, overflow)
    bool has_whole_job_communicator = false;  // over all ranks
    core::Bytes process_memory;               // of the process beyond context and communicators
    bool operator==(const FrameworkMemory&) const = default;
};

}  // namespace sim
