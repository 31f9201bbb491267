// How long a fixed order takes: exact longest path through a schedule with given times per virtual stage.
// Transfers never occupy a rank and links are not contended: they are latencies on edges between ranks, or
// wait for one another on the stream of the rank that sends them. One topological order is made once and
// replayed for any times.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/optional_index.h"
#include "core/units.h"
#include "schedule/schedule.h"

namespace sim {

// Times of one micro-batch (or segment) in one virtual stage, and the change of its rank's activation memory
// when the action starts (positive) or ends (negative). A full backward takes backward_input +
// backward_weight and changes memory by both. By default a forward takes one unit of memory and the
// backward_weight gives it back.
struct StageCost {
    core::Seconds forward{1}, backward_input{1}, backward_weight{1};
    core::Bytes memory_forward{1}, memory_backward_input{0}, memory_backward_weight{-1};
};

struct ScheduleCosts {
    // By virtual stage; one entry is valid for all. Where parts of a sequence differ, by stage and part.
    // segment.
    std::vector<StageCost> stages = std::vector<StageCost>(1);
    core::Seconds transfer;  // between different ranks
    // Instead of it, behind each virtual stage but the last; not for orders with overlapped slots. Empty: all
    // take `transfer`.
    std::vector<core::Seconds> transfers = {};
    // Instead of both, of each virtual stage what its results take to the stage behind it and their gradients
    // to the one before, zero where that is on the same rank: a rank sends one after another, as its passes
    // end. Not for orders with overlapped slots.
    struct Sends {
        core::Seconds forward, backward;
    };
    std::vector<Sends> sends = {};
    // Time of an overlapped forward and backward as a share of their sum (DualPipe's F&B <= F + B).
    double overlap = 1;
    std::vector<core::Seconds> releases;  // earliest start of each rank's first action; empty = 0
    // What each rank still does before the end once its last action is over, or, if it may, from the
    // beginning of the last one on that makes gradients of weights; empty = 0.
    std::vector<core::Seconds> after;
    bool is_after_last_begins = false;

    const StageCost& of(int stage) const { return stages.size() == 1 ? stages.front() : stages[stage]; }
};

struct ActionSpan {
    core::Seconds start, end;
};

struct ScheduleTiming {
    core::Seconds makespan;                      // last end
    std::vector<core::Seconds> rank_span;        // last end - first start; zero for a rank without actions
    std::vector<core::Seconds> rank_work;        // sum of durations
    double bubble_rate = 0;                      // share of ranks x makespan that is not work
    std::vector<int> peak_in_flight;             // forwards not yet freed (freed at W, or at B), per rank
    std::vector<core::Bytes> peak_memory;        // running sum of the memory changes, per rank
    std::vector<std::vector<ActionSpan>> spans;  // per rank, aligned with compute_only(schedule).actions
    core::Seconds greatest_span() const;
};

// The schedule must have passed schedule::verify (InternalError otherwise). Cells other than compute are
// passed over.
ScheduleTiming time_schedule(const schedule::Schedule& schedule, const ScheduleCosts& costs);

// A schedule compiled for replay: some ten nanoseconds an action or less (bench/schedule.cpp).
class ReplayOrder {
public:
    explicit ReplayOrder(const schedule::Schedule& schedule);

    std::size_t actions() const { return steps_.size(); }
    int ranks() const { return ranks_; }
    struct Totals {
        core::Seconds makespan, greatest_span;
    };
    // `ends` is scratch that may be reused between calls; afterwards ends[i + 1] is when step i ended. It is
    // of actions() + 1, and where sends are given of twice as many: what arrives of each step.
    Totals replay(const ScheduleCosts& costs, std::vector<double>& ends) const;
    // Where the makespan of a replay with sends comes from: the passes on its longest path, of each stage, or
    // of each stage and part, and what the path has beside them. No durations of passes make it shorter than
    // this path is with them.
    struct CriticalPath {
        struct Counts {
            double forward = 0, backward_input = 0, backward_weight = 0;
        };
        std::vector<Counts> passes;
        core::Seconds beside;
    };
    CriticalPath critical_path(const ScheduleCosts& costs, const std::vector<double>& ends) const;
    // Messages of a virtual stage's passes on a stream of its rank, in the order of the passes: before a pass
    // may begin, or from its begin on; and what follows its last pass backward.
    struct StageMessages {
        core::Seconds before_forward, before_backward, after_backward, after_last_backward;
    };
    // After a replay: when the last of the messages has ended, of any rank, and what the costs say that a
    // rank does after them. Not for orders with overlapped slots.
    core::Seconds end_of_messages(const ScheduleCosts& costs, const std::vector<double>& ends,
                                  const std::vector<StageMessages>& messages) const;

private:
    friend ScheduleTiming time_schedule(const schedule::Schedule& schedule, const ScheduleCosts& costs);
    // Ends are kept from index 1 on; end 0 is before everything, for steps that need nothing of another rank.
    struct Step {
        std::int32_t dependency = 0;  // an earlier step of another rank
        std::uint16_t rank = 0;
        std::uint16_t has_second = 0;  // of an overlapped slot: second_[i] as well
        std::int32_t cost = 0;         // index into the table of durations
    };
    std::vector<double> durations(const ScheduleCosts& costs) const;
    std::vector<double> waits_of(const ScheduleCosts& costs) const;
    std::vector<double> sends_of(const ScheduleCosts& costs) const;
    std::int32_t cost_index(const schedule::Action& action) const;
    static schedule::ActionKind kind_of(const Step& step);
    std::size_t stage_of(const Step& step) const;
    // Of a rank, with what comes after.
    double end_of_rank(std::size_t rank, const ScheduleCosts& costs, const std::vector<double>& table,
                       const std::vector<double>& ends) const;

    int ranks_ = 0, stages_ = 0, costs_per_stage_ = 1;
    std::vector<Step> steps_;                      // topological order
    std::vector<std::int32_t> position_;           // of each step, in the rank's compute list
    std::vector<std::int32_t> second_;             // of the steps that have one, their second dependency
    std::vector<std::int32_t> before_;             // of each step, the end of the rank's step before
    std::vector<core::OptionalIndex> first_step_;  // of each rank that has actions
    std::vector<std::int32_t> last_end_, last_gradient_end_;  // of each rank, 0 if it has none
    bool has_pairs_ = false;
    std::vector<std::pair<std::int32_t, std::int32_t>>
        pairs_;  // (forward stage, backward cost index) of overlapped slots
};

}  // namespace sim
