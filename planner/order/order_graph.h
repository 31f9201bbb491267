// The part that all orders of a problem have in common: actions, their dependencies, and the precedences that
// memory forces on any order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/index/integers.h"
#include "planner/order/order_evaluator.h"

namespace planner {

// Actions are numbered by rank, letter and micro-batch.
class OrderGraph {
public:
    explicit OrderGraph(const OrderProblem& problem);

    int actions() const { return core::count_of(durations_); }
    int first_of(int rank) const {
        return rank * problem_.word_length();
    }  // its first action too: the first forward of its earliest virtual stage
    int action(int rank, int letter, int k) const {
        return first_of(rank) + letter * problem_.micro_batches + k;
    }
    double duration(int action) const { return durations_[action]; }
    double memory_change(int action) const { return changes_[action]; }
    double greatest_duration() const { return greatest_; }
    const OrderProblem& problem() const { return problem_; }

    // Longest paths between starts, by action: from the start of `source`, or from the beginning of all
    // without one. Minus infinity where there is no path.
    std::vector<double> longest_from(std::optional<int> source) const;
    // Longest path from each action's start to the end of the last weights of `rank`, or of any rank without
    // one.
    std::vector<double> longest_to_end(std::optional<int> rank) const;

private:
    struct Arc {
        int from = 0, to = 0;
        double length = 0;
    };
    void add(int from, int to, double length) { arcs_.push_back({from, to, length}); }
    void add_memory(int rank, int chunk);
    void sort_arcs();

    OrderProblem problem_;
    std::vector<double> durations_, changes_;
    double greatest_ = 0;
    std::vector<Arc> arcs_;  // by the topological number of their tail
};

// One machine: jobs that may start at their heads, and after whose end something of length `tail` follows.
// Jackson's preemptive schedule: no order of them ends before what this returns.
struct Job {
    double head = 0, duration = 0, tail = 0;
};
double one_machine_bound(std::vector<Job>& jobs);

}  // namespace planner
