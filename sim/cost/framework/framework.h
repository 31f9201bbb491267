// Traits of training frameworks: which kernels they fuse, what their host code costs, which types they reduce
// gradients in. They are facts of profiles (framework_profiles/*.toml, read by framework_profile.h); what a
// profile does not say is as in this header.
#pragma once

#include <optional>
#include <string>

#include "core/data_type.h"
#include "core/units.h"
#include "model/operators/cost_context.h"
#include "schedule/plan/plan.h"
#include "sim/cost/kernel/attention.h"

namespace sim {

// How tensors of images lie. Where channels come first (NCHW) they are converted for every convolution on
// tensor cores, and its result back.
enum class ImageLayout { channels_last, channels_first, channels_last_in_half };

struct FrameworkTraits {
    std::string title;  // of the profile, for reports: "Megatron-LM", "PyTorch (eager)"

    // Host. Dispatch of one kernel: zero = the device profile's. The rest stops the device: nothing is queued
    // while the host works.
    core::Seconds dispatch;
    core::Seconds blocked_per_micro_batch;  // reading the loss, Python between passes
    core::Seconds blocked_per_step;         // loss scale, norm of the gradients, logging
    // Statistics of the gradients, tensor by tensor: kernels a parameter tensor and step that the host
    // launches while nothing else is queued; and further ones under Adam, for its preconditioner.
    int statistics_kernels_per_tensor = 0, statistics_kernels_of_adam = 0;

    // Kernels.
    bool has_separate_bias = false;        // biases are added by kernels of their own
    bool has_fused_dropout_add = false;    // bias, dropout and residual in one kernel
    bool skips_masked_scores = false;      // the fused causal softmax reads the lower triangle only
    bool has_fused_norm_relu = false;      // batch norm with the activation and addition after it
    bool has_fused_residual_norm = false;  // residual and layer norm in one kernel; backward of both, with
                                           // the gradients of its parameters, in another
    bool has_fused_gelu =
        false;  // products of Hopper apply GELU and its derivative before they write (cuBLASLt's epilogues)
    bool has_fused_loss = false;          // one pass over the logits
    bool composes_llama_kernels = false;  // RMS norm, rotary positions and gated activations written as
                                          // chains of operations, the first two in fp32
    double wide_elementwise = 1;  // mixed precision by graph rewriting: norms, activations, dropout and
                                  // softmax in fp32 with casts around them
    ImageLayout image_layout = ImageLayout::channels_last;
    bool tunes_convolutions = true;  // the library's fastest algorithm is looked for; false: its default one,
                                     // which saves no multiplications (XLA without autotuning)
    bool fuses_pointwise = false;    // additions apply the relu after them
    bool fuses_norm_relu_in_half_only =
        false;                            // where the fused kernel is cuDNN's: half precision, channels last
    bool casts_fp8_weights_once = false;  // a step: kept for its further micro-batches
    bool casts_fp8_in_norm = false;       // norms write what an fp8 product reads in fp8
    int dense_dispatch_group = 0;         // mixtures route by one-hot products over groups of tokens
    AttentionKernel attention_kernel = AttentionKernel::flash_2;
    model::AttentionImplementation attention =
        model::AttentionImplementation::unfused;  // where a plan does not say
    double composed_elementwise =
        1.0;  // passes of norms, activations and dropout written as chains of simple operations
    double memory_passes = 1.0;  // passes over tensors beyond those counted
    double half_passes =
        1.0;  // ... and of tensors in half precision, where kernels load and store them 2 bytes at a time
    bool applies_dropout = true;             // the usual 0.1 of language models
    bool stops_recomputation_early = false;  // a layer run again ends with the last tensor that its backward
                                             // pass reads (PyTorch's non-reentrant checkpoint)
    bool recomputes_alternate_products = false;  // selective recomputation keeps attention and every other
                                                 // product of a layer, and runs all else again

    // Gradients.
    std::optional<core::DataType>
        reduction;                      // type gradients are reduced in; nothing = that of the parameters
    double sharded_gradient_bytes = 0;  // per unsharded parameter and micro-batch when gradients are sharded:
                                        // views, cast, division (FSDP)
    bool fuses_accumulation = false;    // weight gradients are added by the product that makes them
    double accumulation_bytes = 0;      // per parameter and micro-batch; zero = counted from the types
    bool unscales_every_micro_batch = false;  // apex's O2 adds each micro-batch's half-precision gradients to
                                              // fp32 master gradients: 2 + 4 read, 4 written
    double step_bytes = 0;  // per parameter and step beside the update: unscale, norm, clip, copies
    bool keeps_full_parameters = false;  // mixed precision by casting fp32 parameters at every use (autocast,
                                         // apex O1, graph rewriting): fp32 gradients
    bool overlaps_parameter_gathering = true;
    bool gathers_once_in_pipelines = false;  // sharded parameters stay whole from the first micro-batch of a
                                             // pipeline to the last, whose gradients alone are scattered
    bool gathers_by_tensor = false;  // sharded parameters are gathered tensor by tensor (DeepSpeed ZeRO-3),
                                     // not layer by layer (FSDP)
    int least_sharded_elements = 0;  // ... but for smaller tensors, which stay whole
    int list_operations = 0;  // ... into a list with an entry for each rank, which the host makes, reads and
                              // fills one by one: operations an entry; zero = into one tensor
    bool fetches_fp32_shards = false;  // where hosts keep parameters: the fp32 values go to the device, which
                                       // casts them before it gathers (FSDP)
    bool keeps_full_mixtures =
        false;  // as keeps_full_parameters, but for models with experts, sharded or not
    bool overlaps_input_gradients =
        false;  // tensor parallelism reduces a product's input gradient while its weight gradient is computed
    bool overlaps_tensor_products = false;  // tokens of sequence parallelism are gathered and scattered in
                                            // parts beside the products (Transformer Engine's user buffers)
    bool overlaps_reduction = true;
    bool copies_into_buckets = false;  // whole gradients are copied into the buckets that are reduced, and
                                       // back, tensor by tensor (DDP)
    core::Bytes bucket = core::mebibytes(25);
    double composed_update_bytes =
        0;  // per parameter: Adam or LAMB written as chains of operations, beside one pass over its state
    bool has_multi_tensor_update = true;  // else every tensor has update kernels of its own
    int update_kernels_per_tensor = 10;

    // Transfers between pipeline stages.
    bool splits_by_layers = true;      // stages hold equal numbers of layers; false: balanced by cost
    bool blocks_on_transfers = false;  // compute waits while a message is sent
    bool scatters_activations =
        false;  // each tensor-parallel rank sends its share only (arXiv 2104.04473, section 4.1) ...
    bool scatters_gradients = false;  // ... also on the way back
    int tcp_flows = 0;                // open between two nodes; 0 = as many as fill the network
    bool copies_inputs =
        false;  // every step starts with a blocking copy of fp32 images from pageable host memory
    core::BytesPerSecond tcp_flow_rate;  // of one; zero = the instance's limit
    core::Seconds tcp_step;              // a ring step; zero = the network's latency
    bool broadcasts_parameters = false;  // ZeRO-1's parameters come back by a broadcast from every owner, one
                                         // after another; else by an all-gather
    int vocabulary_multiple =
        1;  // the vocabulary is padded to a multiple of this times the tensor-parallel degree
    bool pads_products = false;  // any product whose rows do not begin on 16 bytes is padded: compilers
};

// Sharded parameters that the framework gathers once in a pipeline are whole through the step, and their
// gradients are: what stays sharded is optimizer state. Gives the plan that sharding; true where it changed.
bool keep_gathered(const FrameworkTraits& traits, schedule::Plan& plan);

// What a plan leaves to the framework: type of gradient reduction, overlap, bucket size, form of the loss.
// For plans that only name their framework.
void adopt(const FrameworkTraits& traits, schedule::Plan& plan, bool has_experts = false);

}  // namespace sim
