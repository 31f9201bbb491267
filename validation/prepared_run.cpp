#include "validation/prepared_run.h"

#include <utility>

#include "cluster/profile/load.h"
#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/framework/framework_lookup.h"

namespace validation {

std::optional<PreparedRun> prepare(const PublishedRun& run, core::Diagnostics& diagnostics,
                                   const sim::CostConstants& constants) {
    std::optional<model::ModelGraph> graph = model::load_model(run.model, {}, diagnostics);
    if (!graph) return std::nullopt;
    std::optional<cluster::Cluster> cluster = cluster::load_cluster(run.cluster, diagnostics);
    if (!cluster) return std::nullopt;
    cluster->ranks_per_node = run.ranks_per_node;
    if (run.transport == "tcp" && cluster->instance.network_name == "efa") {
        cluster::use_transport(cluster->instance, run.transport);
        cluster::prepare_routes(cluster->instance);
    }
    graph->assumptions.insert(graph->assumptions.end(), run.assumptions.begin(), run.assumptions.end());
    schedule::Plan plan = run.plan;
    // Megatron-LM gathers the tokens again before such an operator (its pooler, say); what the layers save by
    // dividing them is left out here.
    if (const std::optional<core::Unsupported> unsupported =
            plan.has_sequence_parallelism() ? model::sequence_parallel_unsupported(*graph) : std::nullopt) {
        graph->assumptions.push_back("tokens are not divided over the tensor-parallel ranks: " +
                                     unsupported->reason);
        plan.sequence_parallel = false;
    }
    schedule::check_plan(plan, *graph, cluster->device_count(), nullptr, diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    if (sim::framework_traits(plan.framework, constants).splits_by_layers)
        if (std::optional<schedule::Partition> partition =
                schedule::partition_by_layers(*graph, plan.stages()))
            plan.partition = std::move(*partition);
    return PreparedRun{std::move(*graph), std::move(*cluster), std::move(plan)};
}

}  // namespace validation
