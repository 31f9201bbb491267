#include "interop/sagemaker/example_scripts.h"

#include "interop/python_literal.h"

namespace interop {

namespace {

constexpr std::int64_t most = 1 << 30;  // of steps, tokens, accumulations

std::optional<std::int64_t> count(const SageMakerBlock& block, const char* name) {
    const core::Value* value = block.hyperparameter({name});
    const bool is_count = value && value->kind() == core::Value::Kind::integer && value->integer() > 0 &&
                          value->integer() <= most;
    return is_count ? std::optional(value->integer()) : std::nullopt;
}

void read_number(const SageMakerBlock& block, const char* name, double& into) {
    if (const core::Value* value = block.hyperparameter({name}); value && value->is_number())
        into = value->number();
}

}  // namespace

void read_example_hyperparameters(const SageMakerBlock& block, const ImportOptions& options,
                                  schedule::PlanFile& file) {
    schedule::Plan& plan = file.plan;
    if (const auto steps = count(block, "max_steps")) file.training.steps = static_cast<int>(*steps);
    if (const auto seed = count(block, "seed")) file.training.seed = static_cast<std::uint64_t>(*seed);
    const auto tokens = count(block, "max_context_width");
    if (tokens && !options.sequence_length) file.model["sequence_length"] = *tokens;
    const auto accumulation = count(block, "gradient_accumulation");
    if (accumulation && plan.layout.pipeline == 1)
        plan.micro_batches = static_cast<int>(plan.micro_batches * *accumulation);
    read_number(block, "lr", plan.optimizer.learning_rate);
    read_number(block, "beta1", plan.optimizer.beta1);
    read_number(block, "beta2", plan.optimizer.beta2);
    read_number(block, "weight_decay", plan.optimizer.weight_decay);
    read_number(block, "grad_clip", plan.optimizer.gradient_clipping);
    // Transformer Engine's: products in fp8, all else as without it.
    if (const core::Value* fp8 = block.hyperparameter({"fp8"}); fp8 && is_true(*fp8))
        plan.precision.compute = core::DataType::fp8;
}

}  // namespace interop
