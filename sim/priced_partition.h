// Where a plan without a partition is cut: stages that take equally long by the prices of the device at hand,
// as far as memory allows.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/cost/pricing.h"

namespace sim {

// Time of one micro-batch's pass through a unit with the collectives it waits for, on the device's clock and
// on the host's, which runs beside it.
struct UnitPass {
    core::Seconds device, host;
};
struct UnitPrice {
    UnitPass forward, backward, backward_input;  // backward: of inputs and weights together
};
// One per partition unit. `costs` are of this plan.
std::vector<UnitPrice> unit_prices(const schedule::Plan& plan, const model::ModelGraph& graph,
                                   CostModels& costs);

// What a simulated step with a partition takes and needs.
struct PartitionTrial {
    core::Seconds step;
    core::Bytes peak;  // of the fullest rank
    bool fits = true;
};
// Nothing where the plan cannot be simulated with it.
using TryPartition = std::function<std::optional<PartitionTrial>(const schedule::Partition&)>;

// The plan's own partition. Where it has none: the division whose busiest pipeline rank is least busy, then
// moved cut by cut as long as the plan's own compute order ends earlier; stages hold no more than the device
// does, with the micro-batches counted that the schedule keeps in flight. For a plan with `memory_weight` w
// this is one of eleven candidates, from the fastest to the one with the leanest stages; the fastest of those
// is taken whose simulated peak is within M + (1 - w) (S - M), where S is the peak of the fastest candidate
// and M the least of all: a larger weight never has a higher peak, nor a shorter step. Nothing when there are
// fewer units than stages.
std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster, CostModels& costs,
                                                      const TryPartition& try_partition);

}  // namespace sim
