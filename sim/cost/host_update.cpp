#include "sim/cost/host_update.h"

#include "cluster/node.h"
#include "sim/cost/collective/nccl.h"

namespace sim {

double update_bytes_per_parameter(const schedule::Plan& plan) {
    const double parameter = core::size_of(plan.precision.parameters).value;
    constexpr double fp32_bytes = 4;
    return core::size_of(plan.precision.gradients).value +
           2 * schedule::state_bytes_per_parameter(plan.optimizer).value +
           (plan.precision.has_master_parameters ? 2 * fp32_bytes + parameter : 2 * parameter);
}

HostUpdate::HostUpdate(const schedule::Plan& plan, const cluster::Cluster& cluster,
                       const CostConstants& constants) {
    if (!plan.updates_on_hosts() || !has_nccl(cluster.instance.device) || lacks_host_bandwidth(cluster))
        return;
    const core::BytesPerSecond of_rank =
        cluster.instance.host_memory_bandwidth * constants.host_update_rate /
        static_cast<double>(cluster::most_ranks_of_a_node(cluster, plan.layout.ranks()));
    seconds_per_byte_ = 1 / of_rank.value;
    bytes_per_element_ = update_bytes_per_parameter(plan);
}

bool lacks_host_bandwidth(const cluster::Cluster& cluster) {
    return has_nccl(cluster.instance.device) && cluster.instance.host_memory_bandwidth.value <= 0;
}

}  // namespace sim
