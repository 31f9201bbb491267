// What plans take at least that are not looked at one by one.
#include <algorithm>

#include "planner/search/search_state.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"

namespace planner {

// All of the model's arithmetic at the peak rate of every device, in the precision of a target.
core::Seconds Search::least_step(std::size_t target, const cluster::Cluster& cluster) const {
    schedule::Plan one = targets_[target].base;
    one.layout = {};
    one.micro_batch = 1;
    double flops = 0;
    for (const core::Seconds load : schedule::partition_loads(one, graph_)) flops += load.value;
    const auto peak = cluster.instance.device.peak.find(one.precision.compute);
    if (peak == cluster.instance.device.peak.end()) return core::Seconds(0);
    return core::Flops(flops * request_.global_batch) / peak->second / cluster.device_count();
}

// On a cluster of the kind of some targets: the compute of every shape of plan, nothing run again, divided
// evenly among its ranks, but for plans whose state exceeds the memory of all devices; or without a look at
// shapes all arithmetic at the peak. Nothing where no plan is left.
std::optional<core::Seconds> Search::least_step_of_any_plan(const cluster::Cluster& cluster,
                                                            bool looks_at_shapes) {
    std::optional<core::Seconds> least;
    const auto take = [&](core::Seconds step) { least = least ? std::min(*least, step) : step; };
    std::vector<const schedule::Plan*> seen;
    for (std::size_t t = 0; t < targets_.size(); ++t) {
        const schedule::Plan& base = targets_[t].base;
        if (targets_[t].cluster.instance.name != cluster.instance.name ||
            std::any_of(seen.begin(), seen.end(),
                        [&](const schedule::Plan* other) { return *other == base; }))
            continue;
        seen.push_back(&base);
        const core::Seconds at_peak = least_step(t, cluster);
        if (!looks_at_shapes || !has_priced_times(cluster) || !request_.uses_bounds) {
            take(at_peak);
            continue;
        }
        SpaceRequest space = space_of(t);
        space.most_virtual_stages = 1;
        space.offload = schedule::Offload::none;
        // Of each shape one schedule, and those that cut its sequences; whatever runs plans may take others.
        if (!space.runnable && space.limits.schedules.empty())
            for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules())
                if (order.name == schedule::Plan().schedule || order.cuts_sequences())
                    space.limits.schedules.push_back(order.name);
        Bounds bounds(cluster, orders_, *stages_[t]);
        for_each_legal_plan(graph_, cluster, space, [&](const schedule::Plan& plan) {
            if (bounds.state_never_fits(plan)) return;
            work_.add(1, per_opened_plan);
            take(std::max(at_peak, bounds.time_of_compute(plan)));
        });
    }
    return least;
}

}  // namespace planner
