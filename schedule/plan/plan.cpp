#include "schedule/plan/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace schedule {

std::string_view name_of(Sharding sharding) {
    switch (sharding) {
        case Sharding::none: return "none";
        case Sharding::optimizer: return "optimizer";
        case Sharding::gradients: return "gradients";
        case Sharding::parameters: return "parameters";
    }
    return "";
}

std::string_view name_of(Recompute recompute) {
    switch (recompute) {
        case Recompute::none: return "none";
        case Recompute::selective: return "selective";
        case Recompute::full: return "full";
    }
    return "";
}

std::string_view name_of(RecomputeModule module) {
    switch (module) {
        case RecomputeModule::core_attn: return "core_attn";
        case RecomputeModule::layernorm: return "layernorm";
        case RecomputeModule::activation: return "activation";
        case RecomputeModule::mla_up_proj: return "mla_up_proj";
        case RecomputeModule::mlp: return "mlp";
        case RecomputeModule::moe: return "moe";
        case RecomputeModule::shared_experts: return "shared_experts";
        case RecomputeModule::moe_act: return "moe_act";
    }
    return "";
}

std::vector<std::string> names_of(RecomputeModules modules) {
    std::vector<std::string> names;
    for (const RecomputeModule module : all_recompute_modules)
        if (modules.has(module)) names.emplace_back(name_of(module));
    return names;
}

std::string_view name_of(Offload offload) {
    switch (offload) {
        case Offload::none: return "none";
        case Offload::host: return "host";
        case Offload::disk: return "disk";
    }
    return "";
}

std::string_view name_of(ContextCommunication communication) {
    switch (communication) {
        case ContextCommunication::all_gather: return "all_gather";
        case ContextCommunication::all_to_all: return "all_to_all";
        case ContextCommunication::ring: return "ring";
    }
    return "";
}

std::string_view name_of(OptimizerKind optimizer) {
    switch (optimizer) {
        case OptimizerKind::sgd: return "sgd";
        case OptimizerKind::adam: return "adam";
        case OptimizerKind::adamw: return "adamw";
        case OptimizerKind::lamb: return "lamb";
    }
    return "";
}

core::Bytes state_bytes_per_parameter(const Optimizer& optimizer) {
    switch (optimizer.kind) {
        case OptimizerKind::sgd: return core::Bytes(optimizer.momentum != 0 ? 4 : 0);
        case OptimizerKind::adam:
        case OptimizerKind::adamw:
        case OptimizerKind::lamb:
            return core::Bytes(8);  // first and second moment, fp32 each (arXiv 1412.6980)
    }
    return core::Bytes(0);
}

namespace {

core::Bytes optimizer_bytes(const Plan& plan) {
    return state_bytes_per_parameter(plan.optimizer) +
           core::Bytes(plan.precision.has_master_parameters ? 4 : 0);
}

}  // namespace

core::Bytes optimizer_bytes_on_device(const Plan& plan) {
    return plan.updates_on_hosts() ? core::Bytes(0) : optimizer_bytes(plan);
}

core::Bytes optimizer_bytes_on_host(const Plan& plan) {
    if (!plan.updates_on_hosts()) return core::Bytes(0);
    return optimizer_bytes(plan) + core::size_of(plan.precision.gradients) +
           core::size_of(plan.precision.parameters);
}

model::CostContext Plan::cost_context() const {
    model::CostContext context;
    context.micro_batch = micro_batch;
    context.tensor_parallel = layout.tensor;
    context.expert_parallel = layout.expert_ranks();
    context.context_parallel = layout.context;
    context.context_communication = context_communication;
    context.sequence_parallel = sequence_parallel && layout.tensor > 1;
    context.compute = precision.activations();
    context.attention = attention;
    context.fused_cross_entropy = fused_cross_entropy;
    context.remakes_expert_activation = runs_again(RecomputeModule::moe_act);
    return context;
}

std::string context_words(const Plan& plan) {
    if (plan.layout.context == 1) return {};
    const std::string_view how = plan.context_communication == ContextCommunication::all_to_all
                                     ? " (heads exchanged)"
                                 : plan.context_communication == ContextCommunication::ring ? " (ring)"
                                                                                            : "";
    return fmt::format(" x context {}{}", plan.layout.context, how);
}

Plan Plan::of_stage(int stage) const {
    Plan plan = *this;
    if (!recomputes_by_stage()) return plan;
    plan.recompute_layers_by_stage = {};
    plan.recompute_layers = layers_again(stage);
    if (plan.recompute_layers == 0) plan.recompute = Recompute::none;
    return plan;
}

std::string recomputation_text(const Plan& plan) {
    const std::string_view name = name_of(plan.recompute);
    if (plan.runs_chosen_modules_again())
        return fmt::format("{} ({})", name, fmt::join(names_of(plan.recompute_modules), ", "));
    if (plan.recomputes_by_stage())
        return fmt::format("{} (layers by stage: {})", name, fmt::join(plan.recompute_layers_by_stage, ", "));
    if (plan.recompute_layers == 0) return std::string(name);
    return fmt::format("{} ({} layer{})", name, plan.recompute_layers, plan.recompute_layers == 1 ? "" : "s");
}

std::string recompute_layers_text(const Plan& plan) {
    if (plan.recompute_layers_by_stage.empty()) return fmt::format("{}", plan.recompute_layers);
    return fmt::format("[{}]", fmt::join(plan.recompute_layers_by_stage, ", "));
}

}  // namespace schedule
