#include "schedule/plan/check_offload.h"

#include <fmt/core.h>

#include "schedule/pipeline/registry.h"

namespace schedule {

namespace {

void check_optimizer(const Plan& plan, const ReportError& error) {
    if (!plan.updates_on_hosts()) return;
    if (needs_update_norms(plan.optimizer))
        error("optimizer_offload", "optimizer_offload = \"host\" is for optimizers that need no norms",
              "use optimizer = \"adamw\", or optimizer_offload = \"none\"");
    if (const auto* chosen = find_pipeline_schedule(plan.schedule); chosen && chosen->is_asynchronous)
        error("optimizer_offload",
              fmt::format("hosts update once a step, and {} between micro-batches", plan.schedule),
              "use another schedule, or optimizer_offload = \"none\"");
}

void check_parameters(const Plan& plan, const ReportError& error) {
    if (!plan.keeps_parameters_on_hosts()) return;
    const std::string given = "parameter_offload = \"host\"";
    if (!plan.updates_on_hosts())
        error("parameter_offload", given + " with its optimizer on the device: who updates must have both",
              "set optimizer_offload = \"host\"");
    if (plan.sharding != Sharding::parameters)
        error("sharding",
              fmt::format("sharding = \"{}\" and {} contradict each other: what lies on hosts is fetched "
                          "before each unit, each rank its shard",
                          name_of(plan.sharding), given),
              "set sharding = \"parameters\" (over one replica too)");
    if (plan.shard_degree > 0 && plan.shard_degree != plan.layout.data)
        error("shard_degree",
              fmt::format("shard_degree = {} of {} replicas with {}: gradients add up on the host of the "
                          "rank that updates them, and so are reduced over all replicas before",
                          plan.shard_degree, plan.layout.data, given),
              "leave shard_degree out");
    if (plan.layout.expert > 1)
        error("expert_parallel",
              fmt::format("expert_parallel = {} with {}: experts that are spread over ranks stay on their "
                          "devices",
                          plan.layout.expert_ranks(), given),
              "set expert_parallel = 1, or parameter_offload = \"none\"");
}

}  // namespace

void check_offload(const Plan& plan, const ReportError& error) {
    if (plan.offload == Offload::disk && plan.offload_bandwidth.value <= 0)
        error("offload_bandwidth",
              "offload = \"disk\" needs offload_bandwidth: no profile states what disks do",
              "for example offload_bandwidth = \"2GB/s\"");
    check_optimizer(plan, error);
    check_parameters(plan, error);
}

}  // namespace schedule
