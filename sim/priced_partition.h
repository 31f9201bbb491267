// Where a plan without a partition is cut: stages that take equally long by the prices of the device at hand,
// as far as memory allows.
#pragma once

#include <optional>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/cost/constants.h"
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

// The plan's own partition. Where it has none: the division whose busiest pipeline rank is least busy, then
// moved cut by cut as long as the plan's own compute order ends earlier; stages hold no more than the device
// does, with the micro-batches counted that the schedule keeps in flight. A plan with `memory_weight` w keeps
// stages within M + (1 - w) (S - M) bytes instead, where S is the fullest stage of the fastest partition and
// M that of the leanest, so that a larger weight never asks for more memory. Nothing when there are fewer
// units than stages.
std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster, CostModels& costs);
// The same with prices of its own; by FLOPs (schedule::complete_partition) where the device has no price for
// the model.
std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster,
                                                      const CostConstants& constants = {});

}  // namespace sim
