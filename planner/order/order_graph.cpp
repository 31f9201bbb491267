#include "planner/order/order_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "core/errors.h"

namespace planner {

OrderGraph::OrderGraph(const OrderProblem& problem) : problem_(problem) {
    const int m = problem.micro_batches, stages = problem.ranks * problem.chunks;
    std::vector<int> letter_of_stage(stages);
    for (int rank = 0; rank < problem.ranks; ++rank)
        for (int chunk = 0; chunk < problem.chunks; ++chunk) {
            const int stage = problem.stage_of(rank, chunk);
            letter_of_stage[stage] = letters_of_stage * chunk;
            const sim::StageCost& cost = problem.stages[stage];
            for (const core::Seconds duration : {cost.forward, cost.backward_input, cost.backward_weight}) {
                durations_.insert(durations_.end(), m, duration.value);
                greatest_ = std::max(greatest_, duration.value);
            }
            for (const core::Bytes change :
                 {cost.memory_forward, cost.memory_backward_input, cost.memory_backward_weight})
                changes_.insert(changes_.end(), m, change.value);
        }
    auto node = [&](int stage, int kind, int k) {
        return action(problem.rank_of(stage), letter_of_stage[stage] + kind, k);
    };
    for (int s = 0; s < stages; ++s)
        for (int k = 0; k < m; ++k) {
            for (int kind = 0; kind < letters_of_stage; ++kind) {
                if (k > 0) add(node(s, kind, k - 1), node(s, kind, k), duration(node(s, kind, k - 1)));
                if (kind > 0) add(node(s, kind - 1, k), node(s, kind, k), duration(node(s, kind - 1, k)));
            }
            if (s + 1 == stages) continue;
            const double delay = problem.rank_of(s) == problem.rank_of(s + 1) ? 0 : problem.transfer.value;
            add(node(s, F, k), node(s + 1, F, k), duration(node(s, F, k)) + delay);
            add(node(s + 1, I, k), node(s, I, k), duration(node(s + 1, I, k)) + delay);
        }
    if (problem.memory_limit)
        for (int rank = 0; rank < problem.ranks; ++rank)
            for (int chunk = 0; chunk < problem.chunks; ++chunk) add_memory(rank, chunk);
    sort_arcs();
}

// Forward k of a rank's virtual stage c: micro-batch k holds its forwards up to c, and every earlier one
// whose last weight on the rank (that of the first virtual stage, the last to get its gradient) is not
// through holds something of the first. So many of those weights come before it as memory asks for.
void OrderGraph::add_memory(int rank, int chunk) {
    const int f = action(rank, F, 0), i = action(rank, I, 0), w = action(rank, W, 0);
    const double least_held = memory_change(f) + std::min(0.0, memory_change(i)),
                 left_behind = memory_change(f) + memory_change(i) + memory_change(w);
    if (least_held <= 0 || std::abs(left_behind) > rounding * memory_change(f)) return;
    double own = 0;
    for (int c = 0; c <= chunk; ++c) {
        const double forward = memory_change(action(rank, letters_of_stage * c + F, 0));
        if (forward < 0) return;
        own += forward;
    }
    const double limit = problem_.greatest_memory();
    const int most_beside = static_cast<int>(std::floor(std::max(0.0, limit - own) / least_held + rounding));
    for (int k = most_beside + 1; k <= problem_.micro_batches - 1; ++k)
        add(w + k - most_beside - 1, action(rank, letters_of_stage * chunk + F, k), duration(w));
}

void OrderGraph::sort_arcs() {
    std::vector<std::vector<std::size_t>> leaving(durations_.size());
    std::vector<int> entering(durations_.size(), 0);
    for (std::size_t i = 0; i < arcs_.size(); ++i) {
        leaving[arcs_[i].from].push_back(i);
        ++entering[arcs_[i].to];
    }
    std::queue<std::size_t> ready;
    for (std::size_t n = 0; n < entering.size(); ++n)
        if (entering[n] == 0) ready.push(n);
    std::vector<Arc> sorted;
    while (!ready.empty()) {
        for (const std::size_t i : leaving[ready.front()]) {
            sorted.push_back(arcs_[i]);
            if (--entering[arcs_[i].to] == 0) ready.push(arcs_[i].to);
        }
        ready.pop();
    }
    core::require(sorted.size() == arcs_.size(),
                  "dependencies and memory arcs lead forward through the micro-batches");
    arcs_ = std::move(sorted);
}

std::vector<double> OrderGraph::longest_from(std::optional<int> source) const {
    std::vector<double> longest(durations_.size(), source ? -std::numeric_limits<double>::infinity() : 0.0);
    if (source) longest[*source] = 0;
    for (const Arc& arc : arcs_) {
        double& at_head = longest[arc.to];
        at_head = std::max(at_head, longest[arc.from] + arc.length);
    }
    return longest;
}

std::vector<double> OrderGraph::longest_to_end(std::optional<int> rank) const {
    std::vector<double> longest(durations_.size(), -std::numeric_limits<double>::infinity());
    for (int r = 0; r < problem_.ranks; ++r)
        for (int chunk = 0; chunk < problem_.chunks && (!rank || r == *rank); ++chunk) {
            const int last = action(r, letters_of_stage * chunk + W, problem_.micro_batches - 1);
            longest[last] = duration(last);
        }
    for (auto arc = arcs_.rbegin(); arc != arcs_.rend(); ++arc) {
        double& at_tail = longest[arc->from];
        at_tail = std::max(at_tail, longest[arc->to] + arc->length);
    }
    return longest;
}

// Among the jobs that may run the one with the longest tail does, and a job with a longer one interrupts it.
double one_machine_bound(std::vector<Job>& jobs) {
    std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
    auto shorter_tail = [&](std::size_t a, std::size_t b) { return jobs[a].tail < jobs[b].tail; };
    std::vector<std::size_t> open;
    std::vector<double> left;
    for (const Job& job : jobs) left.push_back(job.duration);
    double time = -std::numeric_limits<double>::infinity(), bound = time;
    std::size_t next = 0;
    while (next < jobs.size() || !open.empty()) {
        if (open.empty()) time = std::max(time, jobs[next].head);
        while (next < jobs.size() && jobs[next].head <= time) {
            open.push_back(next++);
            std::push_heap(open.begin(), open.end(), shorter_tail);
        }
        const std::size_t job = open.front();
        const double end = time + left[job];
        if (next < jobs.size() && jobs[next].head < end) {
            left[job] -= jobs[next].head - time;
            time = jobs[next].head;
            continue;
        }
        time = end;
        bound = std::max(bound, end + jobs[job].tail);
        std::pop_heap(open.begin(), open.end(), shorter_tail);
        open.pop_back();
    }
    return bound;
}

}  // namespace planner
