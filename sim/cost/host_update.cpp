#include "sim/cost/host_update.h"

#include "cluster/node.h"

namespace sim {

namespace {

bool has_hosts_that_update(const schedule::Plan& plan, const cluster::Cluster& cluster) {
    return plan.updates_on_hosts() && cluster.instance.device.architecture.starts_with("sm");
}

// Read the gradient, read and write the state and the values, write the copy that goes back.
double bytes_per_element(const schedule::Plan& plan) {
    const double parameter = core::size_of(plan.precision.parameters).value;
    constexpr double fp32_bytes = 4;
    return core::size_of(plan.precision.gradients).value +
           2 * schedule::state_bytes_per_parameter(plan.optimizer).value +
           (plan.precision.has_master_parameters ? 2 * fp32_bytes + parameter : 2 * parameter);
}

}  // namespace

HostUpdate::HostUpdate(const schedule::Plan& plan, const cluster::Cluster& cluster,
                       const CostConstants& constants) {
    if (!has_hosts_that_update(plan, cluster) || lacks_host_bandwidth(plan, cluster)) return;
    const core::BytesPerSecond of_rank =
        cluster.instance.host_memory_bandwidth * constants.host_update_rate /
        static_cast<double>(cluster::most_ranks_of_a_node(cluster, plan.layout.ranks()));
    seconds_per_element_ = bytes_per_element(plan) / of_rank.value;
}

bool lacks_host_bandwidth(const schedule::Plan& plan, const cluster::Cluster& cluster) {
    return has_hosts_that_update(plan, cluster) && cluster.instance.host_memory_bandwidth.value <= 0;
}

}  // namespace sim
