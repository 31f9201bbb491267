// What the CPU backend refuses, in words, before anything is allocated.
#include <optional>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cpu/backend.h"
#include "exec/cpu/operators.h"
#include "exec/runtime/run.h"
#include "schedule/pipeline/registry.h"

namespace exec {

void check_runnable(const schedule::Plan& plan, const model::ModelGraph& graph,
                    core::Diagnostics& diagnostics) {
    const auto refuse = [&](const char* key, std::string message, std::string hint) {
        diagnostics.error({}, key, std::move(message), std::move(hint));
    };
    if (const auto unsupported = cpu::CpuBackend::unsupported(plan.precision))
        refuse("plan.precision", unsupported->reason, "set precision = \"fp32\", \"bf16\" or \"fp16\"");
    const schedule::PipelineSchedule* const order = schedule::find_pipeline_schedule(plan.schedule);
    if (plan.precision.activations() == core::DataType::fp16 && order && order->is_asynchronous)
        refuse("plan.precision",
               fmt::format("{} updates several times a step, and the gradients of fp16 are checked once",
                           plan.schedule),
               "set precision = \"bf16\", or choose a schedule that updates once");
    if (plan.communication != "auto")
        refuse("plan.communication",
               fmt::format("communication = \"{}\" is for GPUs; ranks on CPUs exchange messages themselves",
                           plan.communication),
               "leave it out");
    std::set<std::string> reasons;
    for (const model::Operator& op : graph.operators) {
        const std::optional<core::Unsupported> unsupported = cpu::Operators::unsupported(graph, op);
        if (unsupported && reasons.insert(unsupported->reason).second)
            refuse("model",
                   fmt::format("the CPU backend has no kernel for {}, which {} of {} needs",
                               unsupported->reason, op.name, graph.name),
                   "it runs GPT, Llama, BERT, T5 and convolutional models");
    }
    if (plan.has_sequence_parallelism() &&
        (plan.micro_batch * graph.tokens_per_sample / plan.layout.context) % plan.layout.tensor != 0)
        refuse("plan.sequence_parallel",
               fmt::format("{} tokens of a micro-batch cannot be divided into {} equal shares",
                           plan.micro_batch * graph.tokens_per_sample, plan.layout.tensor),
               "choose a micro_batch or sequence length that the tensor-parallel degree divides");
}

}  // namespace exec
