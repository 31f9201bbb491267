// What runs of units cost as stages of the plans of one layout, priced once.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "model/model_fwd.h"
#include "planner/bound/bounds.h"
#include "schedule/plan/plan.h"

namespace planner {

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
    // Of runs of units as only stages of their ranks (Bounds::once_a_step).
    using OnceRow = std::vector<std::optional<Bounds::OnceAStep>>;  // by first runs as above
    OnceRow& once_row(const schedule::Plan& plan);
    const Bounds::OnceAStep& once_a_step(OnceRow& row, const schedule::Plan& plan, std::size_t begin,
                                         std::size_t end);
    std::size_t entries() const { return passes_.size(); }  // passes priced so far
    Bounds& bounds() { return bounds_; }
    const model::ModelGraph& graph() const { return graph_; }

private:
    using Key = std::tuple<int, int, schedule::ContextCommunication, RecomputationKey, bool, GradientHandling,
                           int, bool, int, int>;
    Key key(const schedule::Plan& plan, bool splits, int rank, int place) const;
    model::OperatorRange operators(std::size_t begin, std::size_t end) const {
        return {graph_.units[begin].operators.begin, graph_.units[end - 1].operators.end};
    }
    static std::size_t index(std::size_t begin, std::size_t end) { return (end - 1) * end / 2 + begin; }
    std::size_t runs() const { return index(0, graph_.units.size() + 1); }
    std::size_t first_like(std::size_t begin, std::size_t end);

    const model::ModelGraph& graph_;
    Bounds& bounds_;
    std::map<Key, Row> rows_;
    std::deque<Passes> passes_;
    // By micro-batch, recomputation, sequence parallelism, context communication and passes of a micro-batch;
    // by such first runs as below.
    std::map<std::tuple<int, RecomputationKey, bool, schedule::ContextCommunication, int>,
             std::vector<std::optional<Bounds::Saved>>>
        saved_;
    // By sharding, shard degree and sequence parallelism.
    std::map<std::tuple<schedule::Sharding, int, bool>, OnceRow> once_;
    std::vector<std::optional<std::size_t>> first_like_;  // by run of units: the first run that is like it
    std::vector<std::optional<schedule::StateElements>> elements_;  // of such first runs
};

}  // namespace planner
