// Every contiguous partition of one plan, by lower bounds of its step: those worth a simulation, and the least
// bound of the others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"
#include "planner/bounds.h"
#include "schedule/plan/plan.h"

namespace planner {

// May all partitions of such a plan be looked at? Of plans with one stage a rank, whose busiest rank bounds
// them tightly, and of plans that have few of them.
bool covers_every_partition(const schedule::Plan& plan, std::size_t units);
inline constexpr double most_partitions = 1000;  // of a plan with several stages a rank, if all are covered

// Operators of the stages that begin at these units.
std::vector<model::OperatorRange> ranges_of(const model::ModelGraph& graph,
                                            const std::vector<std::int32_t>& first_units);

struct PartitionOption {
    core::Seconds bound;  // of its step
    std::vector<std::int32_t> first_units;
};

// Stage passes of every run of units, by what they depend on. Of one layout; not thread-safe.
class StageTable {
public:
    StageTable(const model::ModelGraph& graph, Bounds& bounds) : graph_(graph), bounds_(bounds) {}
    const Bounds::StagePasses& of(const schedule::Plan& plan, const schedule::Schedule& order, bool splits,
                                  int stage, std::size_t begin, std::size_t end);
    Bounds& bounds() { return bounds_; }
    const model::ModelGraph& graph() const { return graph_; }

private:
    using Key = std::tuple<int, int, bool, GradientHandling, int, bool, int, int>;
    std::vector<std::optional<Bounds::StagePasses>>& row(const schedule::Plan& plan,
                                                         const schedule::Schedule& order, bool splits,
                                                         int stage);

    const model::ModelGraph& graph_;
    Bounds& bounds_;
    std::map<Key, std::vector<std::optional<Bounds::StagePasses>>> rows_;
};

// The plan without offload: copies only add to a step.
class PartitionSpace {
public:
    PartitionSpace(StageTable& table, const schedule::Plan& plan);

    // No partition's step is shorter. Cheap: the work of all stages spread evenly over the ranks.
    core::Seconds least_of_work() const;
    // Partitions whose bound is below `limit`, by their bounds, then as they come; nothing where they, or the
    // partial ones behind them, are more than `most`. Each bound is that of the plan's own order.
    std::optional<std::vector<PartitionOption>> below(core::Seconds limit, std::size_t most);
    // The same bound of one partition.
    core::Seconds bound_of(const std::vector<std::int32_t>& first_units) const;

private:
    struct Rank {
        double busy = 0, weight = 0, host = 0, fill = 0, drain = 0;
        bool is_seen = false;
        double bound() const;
    };
    const Bounds::StagePasses& passes(int stage, std::size_t begin, std::size_t end) const {
        return table_.of(plan_, *order_, splits_, stage, begin, end);
    }
    void tabulate_needs();
    void visit(int stage, std::size_t begin, double forward, double backward);

    StageTable& table_;
    schedule::Plan plan_;
    const schedule::Schedule* order_;
    bool splits_ = false;
    std::size_t units_;
    // One stage a rank: the least over all divisions of units [i, end) into stages s and after of their
    // longest rank, [s][i].
    std::vector<std::vector<double>> needs_;
    // State of a walk.
    double limit_ = 0;
    std::size_t visited_ = 0, most_ = 0;
    std::vector<Rank> ranks_;
    std::vector<std::int32_t> first_units_;
    std::vector<PartitionOption> found_;
};

}  // namespace planner
