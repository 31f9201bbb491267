// Every contiguous partition of one plan, by lower bounds of its step: those worth a simulation, and the
// least bound of the others.
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
    struct Passes {  // Bounds::StagePasses, in seconds
        double busy, weight, host, forward, backward;
    };
    using Row = std::vector<std::optional<Passes>>;  // by begin and end
    Row& row(const schedule::Plan& plan, const schedule::Schedule& order, bool splits, int stage);
    const Passes& of(Row& row, const schedule::Plan& plan, const schedule::Schedule& order, bool splits,
                     int stage, std::size_t begin, std::size_t end);
    // Of plans with one stage a rank: the least over all divisions of units [i, end) into stages s and after
    // of their longest rank, [s][i]. Equal for all plans whose stages have the same passes.
    using Needs = std::vector<std::vector<double>>;
    const Needs& needs(const schedule::Plan& plan, const schedule::Schedule& order, bool splits);
    // Plans of other micro-batches and recomputations share nothing with those before.
    void forget() { rows_.clear(), needs_.clear(); }
    Bounds& bounds() { return bounds_; }
    const model::ModelGraph& graph() const { return graph_; }

private:
    using Key = std::tuple<int, int, bool, GradientHandling, int, bool, int, int>;
    Key key(const schedule::Plan& plan, bool splits, int rank, int place) const;
    Needs tabulate_needs(const schedule::Plan& plan, const schedule::Schedule& order, bool splits);

    const model::ModelGraph& graph_;
    Bounds& bounds_;
    std::map<Key, Row> rows_;
    std::map<Key, Needs> needs_;
};

// The plan without offload: copies only add to a step.
class PartitionSpace {
public:
    PartitionSpace(StageTable& table, const schedule::Plan& plan);

    // No partition's step is shorter. The first is cheap: the work of all stages spread evenly over the
    // ranks. The second is of the best division into stages.
    core::Seconds least_of_work() const;
    core::Seconds least() const;
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
    const StageTable::Passes& passes(int stage, std::size_t begin, std::size_t end) const {
        return table_.of(*rows_[static_cast<std::size_t>(stage)], plan_, *order_, splits_, stage, begin, end);
    }
    void visit(int stage, std::size_t begin, double forward, double backward);

    StageTable& table_;
    schedule::Plan plan_;
    const schedule::Schedule* order_;
    bool splits_ = false;
    std::size_t units_;
    std::vector<StageTable::Row*> rows_;        // by stage
    const StageTable::Needs* needs_ = nullptr;  // with one stage a rank
    // State of a walk.
    double limit_ = 0;
    std::size_t visited_ = 0, most_ = 0;
    std::vector<Rank> ranks_;
    std::vector<std::int32_t> first_units_;
    std::vector<PartitionOption> found_;
};

}  // namespace planner
