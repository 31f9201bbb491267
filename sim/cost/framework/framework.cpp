#include "sim/cost/framework/framework.h"

namespace sim {

bool keep_gathered(const FrameworkTraits& traits, schedule::Plan& plan) {
    if (!traits.gathers_once_in_pipelines || plan.layout.pipeline == 1 || plan.keeps_parameters_on_hosts() ||
        plan.sharding != schedule::Sharding::parameters)
        return false;
    plan.sharding = schedule::Sharding::optimizer;
    return true;
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
    keep_gathered(traits, plan);
    plan.gradient_bucket = traits.bucket;
    plan.fused_cross_entropy = traits.has_fused_loss;
    if (traits.reduction) plan.precision.gradients = *traits.reduction;
}

}  // namespace sim
