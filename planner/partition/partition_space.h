// Every contiguous partition of one plan, by lower bounds of its step: those worth a simulation, and the
// least bound of the others.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"
#include "planner/bound/bounds.h"
#include "planner/partition/partitions.h"
#include "planner/partition/path_bound.h"
#include "planner/partition/stage_table.h"
#include "schedule/plan/plan.h"

namespace planner {

struct PartitionOption {
    core::Seconds bound;  // of its step
    std::vector<std::int32_t> first_units;
};

// The plan without offload: copies only add to a step. Where stages differ in the layers that run again,
// without these: their number depends on the partition.
class PartitionSpace {
public:
    PartitionSpace(StageTable& table, const schedule::Plan& plan);

    // No partition's step is shorter; of one stage a rank none that fits the device's memory. A part of that
    // bound that is no less than the limit, or infinity, where none is below it.
    core::Seconds least(core::Seconds limit);
    // The division that this bound is of; empty where paths play no part in it.
    std::vector<std::int32_t> division_of_least() const;
    // Partitions whose bound is below `limit`, by their bounds, then as they come; nothing where they, as far
    // as a table tells, are more than `most_found`, or the partial ones behind them more than `most`. Each
    // bound is that of the plan's own order.
    std::optional<std::vector<PartitionOption>> below(
        core::Seconds limit, std::size_t most,
        std::size_t most_found = std::numeric_limits<std::size_t>::max());
    // The same bound of one partition, or a part of it that is no less than the limit.
    core::Seconds bound_of(const std::vector<std::int32_t>& first_units, core::Seconds limit);
    // A partition with a bound below the limit that needs no more memory than there is room for, as far as
    // bounds tell and moves find one: by moves of one unit at a time, to less memory first, from the usual
    // partition, and from `division`, that of the least bound, if they come so far. Where the usual one has
    // no room also the one of least need: bounds of memory may be too low.
    std::vector<PartitionOption> descend(core::Seconds limit, const std::vector<std::int32_t>& division,
                                         core::Bytes room);
    // So far: runs of units looked at as stages, passes of orders replayed, and what memory was asked of.
    double divisions() const { return double(divisions_); }
    double replayed_passes() const { return replayed_passes_; }
    double memory_bounds() const { return memory_bounds_; }
    double held_passes() const { return memories_.passes(); }

private:
    // The least over all divisions of units [i, end) into stages s and after of their longest rank, [s][i].
    using Needs = std::vector<std::vector<double>>;
    void tabulate_needs(double limit);
    bool fits(std::size_t stage, std::size_t begin, std::size_t end);
    bool fits_alone(std::size_t stage, std::size_t begin, std::size_t end);
    struct Rank {
        double busy = 0, weight = 0, host = 0, fill = 0, drain = 0;
        double tied = 0;                           // from the last pass backward, or of inputs, on
        double after_passes = 0, after_begin = 0;  // of its last pass
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
    // Of the only stage of a rank, what its rank does after its passes, and after the last one has begun.
    void add_once_a_step(Rank& rank, std::size_t stage, const StageTable::Passes& passes, std::size_t begin,
                         std::size_t end) const;
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
    // What all ranks lack together, then what the fullest needs.
    std::pair<core::Bytes, core::Bytes> need_of(const std::vector<std::int32_t>& first_units);
    // These where they have room; else by moves that lower the need the first that has and that of the least,
    // or nothing.
    std::vector<std::vector<std::int32_t>> with_room(std::vector<std::int32_t> first_units, core::Bytes room);

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
    StageTable::OnceRow* once_ = nullptr;            // with one stage a rank
    std::vector<char> ends_with_weights_;            // by stage: its last pass makes their gradients alone
    const std::vector<std::vector<Bounds::Kept>>* kept_ = nullptr;
    std::vector<double> room_;  // of a rank with one stage: bytes for state and activations
    // [stage][first unit]: runs that end no later fit; the first unit where none is known to.
    std::vector<std::size_t> fitting_;
    std::size_t divisions_ = 0, most_found_ = 0;
    double replayed_passes_ = 0, memory_bounds_ = 0;
    RankMemories memories_;
    // State of a walk.
    double limit_ = 0;
    std::size_t visited_ = 0, most_ = 0;
    std::vector<Rank> ranks_;
    std::vector<std::int32_t> first_units_;
    std::vector<PartitionOption> found_;
};

}  // namespace planner
