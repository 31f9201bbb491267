// Copies between devices and what their hosts keep: activations, gradients, parameters.
#include <algorithm>
#include <optional>
#include <vector>

#include "cluster/node.h"
#include "sim/cost/collective/collective.h"

namespace sim {

core::Seconds CommunicationCost::host_copy(core::Bytes bytes, bool loads, schedule::Offload where) {
    const bool is_on_disk = where == schedule::Offload::disk;
    std::optional<LinearCost>& cost = host_copies_[is_on_disk][loads];
    if (!cost) {
        cost.emplace();
        const int ranks = plan_.layout.ranks();
        if (is_on_disk) {
            cost->seconds_per_byte =
                cluster::most_ranks_of_a_node(cluster_, ranks) / plan_.offload_bandwidth.value;
        } else if (!has_nccl(cluster_.instance.device)) {
            std::vector<Flow> flows;  // a processor's host is itself
            for (int rank = 0; rank < ranks; ++rank) flows.push_back({device_of(rank), device_of(rank), 1.0});
            *cost = transfer_network_.price(flows);
        } else {
            std::vector<LoadedRoute> routes;
            for (int rank = 0; rank < ranks; ++rank) {
                const cluster::Route down =
                    cluster::route_to_host(cluster_, cluster::DeviceId(device_of(rank)));
                cost->latency = std::max(cost->latency, down.latency);
                routes.push_back({loads ? cluster::reversed(down) : down, 1.0});
            }
            for (const LinkShare& link : transfer_network_.links(routes))
                cost->seconds_per_byte = std::max(cost->seconds_per_byte, link.busy);
        }
    }
    return cost->of(bytes);
}

core::Seconds CommunicationCost::state_copy(core::Bytes bytes, bool loads) {
    const bool is_of_masters = loads && traits_.fetches_fp32_shards && plan_.keeps_parameters_on_hosts() &&
                               plan_.precision.has_master_parameters;
    const double as_wide =
        is_of_masters ? core::size_of(core::DataType::fp32) / core::size_of(plan_.precision.parameters) : 1;
    return host_copy(bytes * as_wide, loads, schedule::Offload::host);
}

}  // namespace sim
