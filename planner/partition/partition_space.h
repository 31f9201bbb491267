// Every contiguous partition of one plan, by lower bounds of its step: those worth a simulation, and the
// least bound of the others.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"
#include "planner/bounds.h"
#include "planner/partition/partitions.h"
#include "planner/partition/path_bound.h"
#include "schedule/plan/plan.h"

namespace planner {

struct PartitionOption {
    core::Seconds bound;  // of its step
    std::vector<std::int32_t> first_units;
};

// Stage passes of every run of units, by what they depend on. Of one layout; not thread-safe.
class StageTable {
public:
    StageTable(const model::ModelGraph& graph, Bounds& bounds) : graph_(graph), bounds_(bounds) {}
    using Passes = Bounds::StagePasses;
    using Row = std::vector<const Passes*>;  // by run of units; runs alike share the first's; null: not made
    Row& row(const schedule::Plan& plan, const schedule::Schedule& order, bool splits, int stage);
    const Passes& of(Row& row, const schedule::Plan& plan, const schedule::Schedule& order, bool splits,
                     int stage, std::size_t begin, std::size_t end);
    // Bytes that a run of units keeps of a micro-batch, or of any segment of it, for its backward, at least.
    const Bounds::Saved& saved(const schedule::Plan& plan, std::size_t begin, std::size_t end);
    // Of a run of units, a rank's share (Bounds::elements).
    const schedule::StateElements& elements(const schedule::Plan& plan, std::size_t begin, std::size_t end);
    std::size_t entries() const { return passes_.size(); }  // passes priced so far
    Bounds& bounds() { return bounds_; }
    const model::ModelGraph& graph() const { return graph_; }

private:
    using Key = std::tuple<int, int, RecomputationKey, bool, GradientHandling, int, bool, int, int>;
    Key key(const schedule::Plan& plan, bool splits, int rank, int place) const;
    model::OperatorRange operators(std::size_t begin, std::size_t end) const {
        return {graph_.units[begin].operators.begin, graph_.units[end - 1].operators.end};
    }
    static std::size_t index(std::size_t begin, std::size_t end) { return (end - 1) * end / 2 + begin; }
    std::size_t first_like(std::size_t begin, std::size_t end);

    const model::ModelGraph& graph_;
    Bounds& bounds_;
    std::map<Key, Row> rows_;
    std::deque<Passes> passes_;
    // By micro-batch, recomputation, sequence parallelism and passes of a micro-batch; by such first runs as
    // below.
    std::map<std::tuple<int, RecomputationKey, bool, int>, std::vector<std::optional<Bounds::Saved>>> saved_;
    std::vector<std::optional<std::size_t>> first_like_;  // by run of units: the first run that is like it
    std::vector<std::optional<schedule::StateElements>> elements_;  // of such first runs
};

// The plan without offload: copies only add to a step.
class PartitionSpace {
public:
    PartitionSpace(StageTable& table, const schedule::Plan& plan);

    // No partition's step is shorter; of one stage a rank none that fits the device's memory. A part of that
    // bound that is no less than the limit, or infinity, where none is below it.
    core::Seconds least(core::Seconds limit);
    // Partitions whose bound is below `limit`, by their bounds, then as they come; nothing where they, as far
    // as a table tells, are more than `most_found`, or the partial ones behind them more than `most`. Each
    // bound is that of the plan's own order.
    std::optional<std::vector<PartitionOption>> below(
        core::Seconds limit, std::size_t most,
        std::size_t most_found = std::numeric_limits<std::size_t>::max());
    // The same bound of one partition, or a part of it that is no less than the limit.
    core::Seconds bound_of(const std::vector<std::int32_t>& first_units, core::Seconds limit);
    // So far: runs of units looked at as stages, and passes of orders replayed.
    double divisions() const { return double(divisions_); }
    double replayed_passes() const { return replayed_passes_; }

private:
    // The least over all divisions of units [i, end) into stages s and after of their longest rank, [s][i].
    using Needs = std::vector<std::vector<double>>;
    void tabulate_needs(double limit);
    bool fits(std::size_t stage, std::size_t begin, std::size_t end);
    struct Rank {
        double busy = 0, weight = 0, host = 0, fill = 0, drain = 0;
        double tied = 0;  // from the last pass backward, or of inputs, on
        bool is_seen = false;
        double bound() const;
    };
    const StageTable::Passes& passes(int stage, std::size_t begin, std::size_t end) const {
        return table_.of(*rows_[stage], plan_, *order_, splits_, stage, begin, end);
    }
    double sent_forward(std::size_t stage) const {
        return stage < any_.costs.sends.size() ? any_.costs.sends[stage].forward.value : 0;
    }
    double sent_back(std::size_t stage) const {
        return stage < any_.costs.sends.size() ? any_.costs.sends[stage].backward.value : 0;
    }
    // Of what ranks share, what the first stage's rank does once the last gradient has come back to it; from
    // the beginning of that pass on, which is no longer than this, if it may.
    double tied_after(double first_backward) const;
    // Null where there is none, or it is too long.
    const sim::ReplayOrder* whole_order();
    std::vector<sim::StageCost> costs_of(const std::vector<std::int32_t>& first_units) const;
    // Of any_'s stages, without what messages of other streams take.
    double replay();
    Bounds::PassesByStage passes_of(const std::vector<std::int32_t>& first_units) const;
    void tabulate_runs(double limit);
    double mean_path(double limit);
    // What the units before `begin` ask of those from it on.
    struct Before {
        double forward = 0, backward = 0, tied = 0;
        double path = 0;
    };
    void visit(int stage, std::size_t begin, const Before& before);

    StageTable& table_;
    schedule::Plan plan_;
    const schedule::Schedule* order_;
    Bounds::AnyPartition any_;                            // its stages are those last replayed
    std::optional<const sim::ReplayOrder*> whole_order_;  // once it is asked for
    std::vector<double> ends_;                            // of that replay
    std::optional<PathBound> paths_;
    bool splits_ = false;
    std::size_t units_;
    std::vector<StageTable::Row*> rows_;             // by stage
    Needs needs_;                                    // with one stage a rank
    std::vector<std::vector<PathBound::Run>> runs_;  // by stage, of the last tables
    const std::vector<std::vector<Bounds::Kept>>* kept_ = nullptr;
    std::vector<double> room_;  // of a rank with one stage: bytes for state and activations
    std::size_t divisions_ = 0, most_found_ = 0;
    double replayed_passes_ = 0;
    // State of a walk.
    double limit_ = 0;
    std::size_t visited_ = 0, most_ = 0;
    std::vector<Rank> ranks_;
    std::vector<std::int32_t> first_units_;
    std::vector<PartitionOption> found_;
};

}  // namespace planner
