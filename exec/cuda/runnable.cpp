#include "exec/cuda/runnable.h"

#include <optional>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cuda/operator/operators.h"
#include "model/operators/rank_share.h"
#include "schedule/pipeline/registry.h"

namespace exec::cuda {

void check_runnable(const schedule::Plan& plan, const model::ModelGraph& graph, const DeviceReport& device,
                    core::Diagnostics& diagnostics) {
    const auto refuse = [&](const char* key, std::string message, std::string hint) {
        diagnostics.error({}, key, std::move(message), std::move(hint));
    };
    const schedule::Precision& precision = plan.precision;
    if (precision.parameters == core::DataType::fp8 || precision.gradients == core::DataType::fp8)
        refuse("plan.precision", "fp8 is a format of products, not of stored parameters and gradients",
               "store them in bf16 or fp32");
    if (precision.compute == core::DataType::fp8 && device.available && !has_fp8(device))
        refuse("plan.precision",
               fmt::format("{} has no matrix units for fp8: those begin with compute 8.9, its own is {}.{}",
                           device.name, device.compute_major, device.compute_minor),
               "set precision = \"bf16\"");
    if (plan.updates_on_hosts())
        refuse("plan.optimizer_offload", "the CUDA backend updates on the device",
               "set optimizer_offload = \"none\"");
    const schedule::PipelineSchedule* const chosen = schedule::find_pipeline_schedule(plan.schedule);
    if (chosen && chosen->is_asynchronous && precision.compute == core::DataType::fp16)
        refuse("plan.precision",
               fmt::format("with fp16 all ranks agree whether an update is left out and how losses are "
                           "scaled, and with schedule = \"{}\" stages update at different times",
                           plan.schedule),
               "set precision = \"bf16\", or choose a synchronous schedule");
    for (const model::Operator& op : graph.operators)
        if (model::gathers_projection(op, plan.cost_context())) {
            refuse("plan.tensor_parallel",
                   fmt::format("the CUDA backend gives no head of keys and values to several ranks: {} of {} "
                               "has {} for tensor_parallel = {}",
                               op.name, graph.name, op.attributes.kv_heads, plan.layout.tensor),
                   fmt::format("use at most {}", op.attributes.kv_heads));
            break;
        }
    std::set<std::string> reasons;
    for (const model::Operator& op : graph.operators) {
        const std::optional<core::Unsupported> unsupported = Operators::unsupported(graph, op);
        if (unsupported && reasons.insert(unsupported->reason).second)
            refuse("model",
                   fmt::format("the CUDA backend has no kernel for {}, which {} of {} needs",
                               unsupported->reason, op.name, graph.name),
                   "it runs GPT, Llama, BERT and convolutional models");
    }
    if (plan.has_sequence_parallelism() &&
        (plan.micro_batch * graph.tokens_per_sample) % plan.layout.tensor != 0)
        refuse("plan.sequence_parallel",
               fmt::format("{} tokens of a micro-batch cannot be divided into {} equal shares",
                           plan.micro_batch * graph.tokens_per_sample, plan.layout.tensor),
               "choose a micro_batch or sequence length that the tensor-parallel degree divides");
}

}  // namespace exec::cuda
