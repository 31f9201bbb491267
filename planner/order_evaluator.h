// Exact length of a pipeline order, fast enough to be asked a million times a second for small ones.
//
// One virtual stage per rank, backward split, micro-batches in order within forwards, backward_inputs and weights of a stage (equal micro-batches can be exchanged
// without loss, so some optimum has this form): an order is then one word over {F, I, W} per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "core/units.h"
#include "schedule/schedule.h"
#include "sim/schedule_timing.h"

namespace planner {

enum class OrderObjective {
    makespan,  // last end
    span,      // longest time any one rank is occupied, last end - first start; a rank may start its first action late for it
};

struct OrderProblem {
    int ranks = 1;
    int micro_batches = 1;
    std::vector<sim::StageCost> stages;  // one per rank
    core::Seconds transfer;
    core::Bytes memory_limit{0};         // 0 = none
    OrderObjective objective = OrderObjective::makespan;
};

enum Letter : std::uint8_t { F = 0, I = 1, W = 2 };
using Order = std::vector<std::vector<std::uint8_t>>;  // [rank] word of Letters, 3 m long

class OrderEvaluator {
public:
    explicit OrderEvaluator(const OrderProblem& problem);

    // Infinite when the order deadlocks.
    double evaluate(const Order& order);
    // Of the order evaluated last: mean over ranks of what `evaluate` takes the greatest of. Tells apart orders of equal length for a search.
    double mean() const { return mean_; }
    // Positions [from, to) of the word keep F before I before W of each micro-batch and the memory limit.
    bool is_allowed(const std::vector<std::uint8_t>& word, int rank) const;

    // Earliest start of each rank's first action at which the objective is reached (span: later than its input may be there).
    std::vector<core::Seconds> releases(const Order& order, double objective);

    const OrderProblem& problem() const { return problem_; }

private:
    bool relax(const Order& order, int source);
    double span(const Order& order);

    OrderProblem problem_;
    std::vector<double> durations_;        // [rank * 3 + letter]
    std::vector<double> memory_at_start_, memory_at_end_;
    std::vector<double> ends_;             // [(rank * 2 + letter) * m + k]: ends of F and I
    std::vector<double> rank_end_, first_start_, release_;
    std::vector<std::int32_t> head_, count_;
    double mean_ = 0;
    std::vector<double> reach_, walk_;     // p x p longest paths between ranks, Karp's table
};

schedule::Schedule to_schedule(const OrderProblem& problem, const Order& order);
// Nothing but words: for lists of one stage per rank with split backward.
Order to_order(const schedule::Schedule& schedule);

}  // namespace planner
