// Bounds that cost microseconds: no plan needs less memory or time than they say, under the very prices the simulator uses.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "model/model_graph.h"
#include "schedule/memory.h"
#include "schedule/plan.h"
#include "schedule/schedule.h"

namespace planner {

struct MemoryBound {
    core::Bytes state;       // parameters, gradients and optimizer state of the rank below
    core::Bytes peak;        // with context and activations; at least this much is needed on that rank
    int pipeline_rank = 0;   // the rank that needs most
};

// Not thread-safe: one object a thread. Remembers what plans of one model and cluster share.
class Bounds {
public:
    Bounds(const model::ModelGraph& graph, const cluster::Cluster& cluster);
    ~Bounds();

    // Least memory of the tightest rank: exact state, the schedule's micro-batches in flight times what each keeps, and the peak of one operator.
    // Nothing when the model has fewer units than stages.
    std::optional<MemoryBound> memory(const schedule::Plan& plan);
    // Least step time: every rank waits for the first micro-batch to reach it, computes all of its own with the tensor-parallel collectives in between, and the last
    // micro-batch still has to go back to the first stage; no less than its data-parallel communication takes alone. Zero when the device's times are measured
    // per operator or its prices are missing.
    core::Seconds time(const schedule::Plan& plan);

private:
    struct StageCost;
    struct Caches;

    const std::vector<model::OperatorRange>* stages(const schedule::Plan& plan);
    const schedule::ActivationFootprint& footprint(const schedule::Plan& plan, model::OperatorRange range);
    const schedule::Schedule* order(const schedule::Plan& plan);
    const StageCost& stage_cost(const schedule::Plan& plan, model::OperatorRange range, int pipeline_rank);

    const model::ModelGraph& graph_;
    const cluster::Cluster& cluster_;
    std::unique_ptr<Caches> caches_;
};

}  // namespace planner
