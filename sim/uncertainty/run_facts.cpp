#include "sim/uncertainty/run_facts.h"

#include "core/data_type.h"
#include "model/model_graph.h"
#include "sim/cost/framework/framework_lookup.h"

namespace sim {

RunFacts facts_of(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                  const schedule::Plan& plan) {
    RunFacts facts;
    facts.device = cluster.instance.device.architecture;
    facts.precision = core::name_of(plan.precision.compute);
    facts.framework = plan.framework.empty() ? "that is not named" : framework_traits(plan.framework).title;
    facts.family = graph.family;
    facts.transport = cluster.nodes > 1 ? cluster.instance.network_name : "none";
    facts.nodes = cluster.nodes;
    facts.devices = plan.layout.ranks();
    facts.tensor = plan.layout.tensor;
    facts.pipeline = plan.layout.pipeline;
    facts.shards_parameters = plan.sharding == schedule::Sharding::parameters;
    return facts;
}

}  // namespace sim
