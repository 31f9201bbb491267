#include "sim/cost/framework/framework_fact.h"

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace sim {

std::span<const FrameworkFact> framework_facts() {
    using T = FrameworkTraits;
    using M = FrameworkMemory;
    static const FrameworkFact list[] = {
        {"host", "dispatch", &T::dispatch,
         "host time to launch one kernel; left out: that of the device profile"},
        {"host", "blocked_per_micro_batch", &T::blocked_per_micro_batch,
         "device idle while the host works, a micro-batch: reading the loss, Python between passes"},
        {"host", "blocked_per_step", &T::blocked_per_step,
         "device idle while the host works, a step: loss scale, norm of the gradients, logging"},
        {"host", "statistics_kernels_per_tensor", &T::statistics_kernels_per_tensor,
         "statistics of the gradients: kernels a parameter tensor and step, launched while nothing else is "
         "queued"},
        {"host", "statistics_kernels_of_adam", &T::statistics_kernels_of_adam,
         "further ones under Adam, for its preconditioner"},
        {"host", "copies_inputs", &T::copies_inputs,
         "every step starts with a blocking copy of fp32 images from pageable host memory"},
        {"kernels", "attention", &T::attention, "attention of models where a plan does not say"},
        {"kernels", "attention_kernel", &T::attention_kernel,
         "whose fused attention runs where a plan asks for one"},
        {"kernels", "has_separate_bias", &T::has_separate_bias, "biases are added by kernels of their own"},
        {"kernels", "has_fused_dropout_add", &T::has_fused_dropout_add,
         "bias, dropout and residual in one kernel"},
        {"kernels", "has_fused_norm_relu", &T::has_fused_norm_relu,
         "batch norm with the activation and addition after it"},
        {"kernels", "has_fused_residual_norm", &T::has_fused_residual_norm,
         "residual and layer norm in one kernel, backward with the gradients of its parameters in another"},
        {"kernels", "has_fused_gelu", &T::has_fused_gelu,
         "products of Hopper apply GELU and its derivative before they write"},
        {"kernels", "has_fused_loss", &T::has_fused_loss, "one pass over the logits"},
        {"kernels", "composes_llama_kernels", &T::composes_llama_kernels,
         "RMS norm, rotary positions and gated activations as chains of operations, the first two in fp32"},
        {"kernels", "skips_masked_scores", &T::skips_masked_scores,
         "the fused causal softmax reads the lower triangle only"},
        {"kernels", "memory_passes", &T::memory_passes,
         "passes over tensors over those counted from the operators", true},
        {"kernels", "half_passes", &T::half_passes, "the same of tensors in half precision, on top", true},
        {"kernels", "wide_elementwise", &T::wide_elementwise,
         "mixed precision by graph rewriting: norms, activations, dropout and softmax in fp32, over half "
         "precision",
         true},
        {"kernels", "composed_elementwise", &T::composed_elementwise,
         "passes of norms, activations and dropout written as chains of simple operations, over fused ones",
         true},
        {"kernels", "image_layout", &T::image_layout,
         "how tensors of images lie; where channels come first they are converted for tensor cores"},
        {"kernels", "tunes_convolutions", &T::tunes_convolutions,
         "the fastest algorithm of a convolution is looked for; false: the library's default, without "
         "Winograd"},
        {"kernels", "fuses_norm_relu_in_half_only", &T::fuses_norm_relu_in_half_only,
         "has_fused_norm_relu holds for half precision only, as cuDNN's kernel does"},
        {"kernels", "fuses_pointwise", &T::fuses_pointwise, "additions apply the relu after them"},
        {"kernels", "casts_fp8_weights_once", &T::casts_fp8_weights_once,
         "weights are cast to fp8 once a step, and kept for its further micro-batches"},
        {"kernels", "casts_fp8_in_norm", &T::casts_fp8_in_norm,
         "norms write what an fp8 product reads in fp8"},
        {"kernels", "dense_dispatch_group", &T::dense_dispatch_group,
         "mixtures route by one-hot products over groups of so many tokens; 0: they do not"},
        {"kernels", "vocabulary_multiple", &T::vocabulary_multiple,
         "the vocabulary is padded to a multiple of this times the tensor-parallel degree", true},
        {"kernels", "pads_products", &T::pads_products,
         "any product whose rows do not begin on 16 bytes is padded"},
        {"kernels", "applies_dropout", &T::applies_dropout, "the usual 0.1 of language models"},
        {"recomputation", "stops_recomputation_early", &T::stops_recomputation_early,
         "a layer run again ends with the last tensor that its backward pass reads"},
        {"recomputation", "recomputes_alternate_products", &T::recomputes_alternate_products,
         "selective recomputation keeps attention and every other product of a layer"},
        {"gradients", "reduction", &T::reduction,
         "type gradients are reduced in; left out: that of the parameters"},
        {"gradients", "keeps_full_parameters", &T::keeps_full_parameters,
         "mixed precision by casting fp32 parameters at every use: fp32 gradients"},
        {"gradients", "keeps_full_mixtures", &T::keeps_full_mixtures,
         "the same of models with experts, sharded or not"},
        {"gradients", "fuses_accumulation", &T::fuses_accumulation,
         "weight gradients are added by the product that makes them"},
        {"gradients", "accumulation_bytes", &T::accumulation_bytes,
         "traffic of adding gradients, a parameter and micro-batch; 0: counted from the types"},
        {"gradients", "unscales_every_micro_batch", &T::unscales_every_micro_batch,
         "half-precision gradients are added to fp32 master gradients each micro-batch"},
        {"gradients", "sharded_gradient_bytes", &T::sharded_gradient_bytes,
         "traffic of sharded gradients beside their reduction, an unsharded parameter and micro-batch"},
        {"gradients", "overlaps_reduction", &T::overlaps_reduction,
         "reductions run beside the backward pass"},
        {"gradients", "overlaps_parameter_gathering", &T::overlaps_parameter_gathering,
         "gathering of updated or sharded parameters runs beside compute"},
        {"gradients", "gathers_once_in_pipelines", &T::gathers_once_in_pipelines,
         "sharded parameters and gradients stay whole through all micro-batches of a pipeline"},
        {"gradients", "gathers_by_tensor", &T::gathers_by_tensor,
         "sharded parameters are gathered tensor by tensor, not layer by layer"},
        {"gradients", "least_sharded_elements", &T::least_sharded_elements,
         "... but for tensors of fewer elements, which stay whole"},
        {"gradients", "list_operations", &T::list_operations,
         "... into a list with an entry for each rank: operations of the host an entry; 0: into one tensor"},
        {"gradients", "fetches_fp32_shards", &T::fetches_fp32_shards,
         "of parameters on hosts the fp32 values go to the device, not their casts"},
        {"gradients", "broadcasts_parameters", &T::broadcasts_parameters,
         "parameters come back by a broadcast from every owner, one after another"},
        {"gradients", "copies_into_buckets", &T::copies_into_buckets,
         "whole gradients are copied into the buckets that are reduced, and back"},
        {"gradients", "bucket", &T::bucket, "size of a reduction", true},
        {"update", "step_bytes", &T::step_bytes,
         "traffic beside the update, a parameter and step: unscale, norm, clip, copies"},
        {"update", "composed_update_bytes", &T::composed_update_bytes,
         "traffic of an update written as chains of operations, a parameter, beside one pass over its state"},
        {"update", "has_multi_tensor_update", &T::has_multi_tensor_update,
         "update kernels work on many tensors at once"},
        {"update", "update_kernels_per_tensor", &T::update_kernels_per_tensor,
         "where they do not, kernels of each tensor"},
        {"parallelism", "overlaps_input_gradients", &T::overlaps_input_gradients,
         "a product's input gradient is reduced while its weight gradient is computed"},
        {"parallelism", "overlaps_tensor_products", &T::overlaps_tensor_products,
         "tokens of sequence parallelism are gathered and scattered in parts beside the products"},
        {"parallelism", "splits_by_layers", &T::splits_by_layers,
         "stages hold equal numbers of layers; false: balanced by cost"},
        {"parallelism", "blocks_on_transfers", &T::blocks_on_transfers,
         "compute waits while a message between stages is sent"},
        {"parallelism", "scatters_activations", &T::scatters_activations,
         "each tensor-parallel rank sends its share of a message between stages only"},
        {"parallelism", "scatters_gradients", &T::scatters_gradients, "the same on the way back"},
        {"parallelism", "tcp_flows", &T::tcp_flows,
         "TCP flows open between two nodes; 0: as many as fill the network"},
        {"parallelism", "tcp_flow_rate", &T::tcp_flow_rate,
         "rate of one; left out: the limit of the instance"},
        {"parallelism", "tcp_step", &T::tcp_step,
         "time of a ring step over it; left out: the latency of the network"},
        {"memory", "has_kernel_workspace", &M::has_kernel_workspace,
         "kernels hold workspace of their own; false: fused away, or in memory not yet in use"},
        {"memory", "has_in_place_loss", &M::has_in_place_loss, "the loss overwrites its logits"},
        {"memory", "keeps_stage_outputs", &M::keeps_stage_outputs,
         "tensors sent by a stage stay until its backward pass"},
        {"memory", "copies_gradients_into_buckets", &M::copies_gradients_into_buckets,
         "buckets stand beside the gradients"},
        {"memory", "reduction_bucket_elements", &M::reduction_bucket_elements,
         "elements of a reduction bucket of a sharded optimizer"},
        {"memory", "live_parameter_elements", &M::live_parameter_elements,
         "elements of gathered parameters that are kept for reuse"},
        {"memory", "accumulator_bytes", &M::accumulator_bytes,
         "sums of gradients beside the Program's, in a wider type, a parameter"},
        {"memory", "bf16_accumulator_bytes", &M::bf16_accumulator_bytes, "the same of bf16 training"},
        {"memory", "flattened_bytes", &M::flattened_bytes,
         "all gradients flattened before a sharded reduction without pipeline, a parameter"},
        {"memory", "keeps_whole_gradients", &M::keeps_whole_gradients,
         "sharded gradients are whole until the end of the backward pass"},
        {"memory", "update_bytes", &M::update_bytes, "temporaries of the update, a parameter"},
        {"memory", "sharded_update_bytes", &M::sharded_update_bytes,
         "the same where the optimizer is sharded"},
        {"memory", "bf16_update_bytes", &M::bf16_update_bytes, "the same of bf16 training; 0: as the others"},
        {"memory", "keeps_mixtures_in_half", &M::keeps_mixtures_in_half,
         "models with experts: weights, gradients and moments in 2 bytes each, no master weights"},
        {"memory", "caches_blocks", &M::caches_blocks, "an allocator that keeps freed blocks"},
        {"memory", "has_model_communicator", &M::has_model_communicator,
         "a communicator of each replica of the model"},
        {"memory", "has_whole_job_communicator", &M::has_whole_job_communicator,
         "a communicator of all ranks"},
        {"memory", "process_memory", &M::process_memory,
         "memory of the process beyond context and communicators"},
    };
    return list;
}

bool can_hold(const FrameworkFact& fact, ConstantUnit unit) {
    struct IsHeld {
        ConstantUnit unit;
        bool is_time() const {
            return unit == ConstantUnit::microseconds || unit == ConstantUnit::milliseconds;
        }
        bool operator()(double FrameworkTraits::*) const { return unit == ConstantUnit::one; }
        bool operator()(double FrameworkMemory::*) const { return unit == ConstantUnit::one; }
        bool operator()(core::Seconds FrameworkTraits::*) const { return is_time(); }
        bool operator()(core::Bytes FrameworkTraits::*) const { return unit == ConstantUnit::gibibytes; }
        bool operator()(core::Bytes FrameworkMemory::*) const { return unit == ConstantUnit::gibibytes; }
        bool operator()(core::BytesPerSecond FrameworkTraits::*) const {
            return unit == ConstantUnit::gigabytes_per_second;
        }
        bool operator()(bool FrameworkTraits::*) const { return false; }
        bool operator()(bool FrameworkMemory::*) const { return false; }
        bool operator()(int FrameworkTraits::*) const { return false; }
        bool operator()(AttentionKernel FrameworkTraits::*) const { return false; }
        bool operator()(ImageLayout FrameworkTraits::*) const { return false; }
        bool operator()(model::AttentionImplementation FrameworkTraits::*) const { return false; }
        bool operator()(std::optional<core::DataType> FrameworkTraits::*) const { return false; }
    };
    return std::visit(IsHeld{unit}, fact.field);
}

namespace {

core::Seconds time_of(double value, ConstantUnit unit) {
    return unit == ConstantUnit::milliseconds ? core::milliseconds(value) : core::microseconds(value);
}

}  // namespace

void fill(FrameworkFacts& facts, const FrameworkFact& fact, double value, ConstantUnit unit) {
    if (!can_hold(fact, unit))
        throw core::InternalError(
            fmt::format("broken promise: {}.{} holds no such constant", fact.section, fact.key));
    if (const auto* number = std::get_if<double FrameworkTraits::*>(&fact.field))
        facts.traits.** number = value;
    else if (const auto* of_memory = std::get_if<double FrameworkMemory::*>(&fact.field))
        facts.memory.** of_memory = value;
    else if (const auto* time = std::get_if<core::Seconds FrameworkTraits::*>(&fact.field))
        facts.traits.** time = time_of(value, unit);
    else if (const auto* bytes = std::get_if<core::Bytes FrameworkTraits::*>(&fact.field))
        facts.traits.** bytes = core::gibibytes(value);
    else if (const auto* held = std::get_if<core::Bytes FrameworkMemory::*>(&fact.field))
        facts.memory.** held = core::gibibytes(value);
    else if (const auto* rate = std::get_if<core::BytesPerSecond FrameworkTraits::*>(&fact.field))
        facts.traits.** rate = core::gigabytes_per_second(value);
}

std::string_view name_of(AttentionKernel kernel) {
    switch (kernel) {
        case AttentionKernel::flash_1: return "flash_1";
        case AttentionKernel::flash_2: return "flash_2";
        case AttentionKernel::cudnn: return "cudnn";
    }
    throw core::InternalError("broken promise: every attention kernel has a name");
}

std::string_view name_of(ImageLayout layout) {
    switch (layout) {
        case ImageLayout::channels_last: return "channels_last";
        case ImageLayout::channels_first: return "channels_first";
        case ImageLayout::channels_last_in_half: return "channels_last_in_half";
    }
    throw core::InternalError("broken promise: every layout of images has a name");
}

std::string_view name_of(model::AttentionImplementation attention) {
    switch (attention) {
        case model::AttentionImplementation::unfused: return "unfused";
        case model::AttentionImplementation::fused_softmax: return "fused_softmax";
        case model::AttentionImplementation::flash: return "flash";
    }
    throw core::InternalError("broken promise: every form of attention has a name");
}

namespace {

struct InWords {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int value) const { return std::to_string(value); }
    std::string operator()(double value) const { return fmt::format("{:g}", value); }
    std::string operator()(core::Seconds value) const { return core::format(value); }
    std::string operator()(core::Bytes value) const { return core::format(value); }
    std::string operator()(core::BytesPerSecond value) const { return core::format(value); }
    std::string operator()(AttentionKernel value) const { return std::string(name_of(value)); }
    std::string operator()(ImageLayout value) const { return std::string(name_of(value)); }
    std::string operator()(model::AttentionImplementation value) const { return std::string(name_of(value)); }
    std::string operator()(const std::optional<core::DataType>& value) const {
        return value ? std::string(core::name_of(*value)) : std::string("that of the parameters");
    }
};

const FrameworkTraits& holder(const FrameworkFacts& facts, const FrameworkTraits*) { return facts.traits; }
const FrameworkMemory& holder(const FrameworkFacts& facts, const FrameworkMemory*) { return facts.memory; }

}  // namespace

std::string value_in_words(const FrameworkFacts& facts, const FrameworkFact& fact) {
    return std::visit(
        [&]<class Holder, class T>(T Holder::* field) {
            return InWords{}(holder(facts, static_cast<const Holder*>(nullptr)).*field);
        },
        fact.field);
}

}  // namespace sim
