#include "planner/order_evaluator.h"

#include <algorithm>
#include <limits>

#include "core/diagnostics.h"

namespace planner {

namespace {
constexpr double infinite = std::numeric_limits<double>::infinity();
}

OrderEvaluator::OrderEvaluator(const OrderProblem& problem) : problem_(problem) {
    const auto p = static_cast<std::size_t>(problem.ranks), m = static_cast<std::size_t>(problem.micro_batches);
    core::require(problem.stages.size() == p, "one virtual stage per rank");
    for (const sim::StageCost& stage : problem.stages) {
        for (const core::Seconds time : {stage.forward, stage.backward_input, stage.backward_weight}) durations_.push_back(time.value);
        for (const core::Bytes change : {stage.memory_forward, stage.memory_backward_input, stage.memory_backward_weight}) {
            memory_at_start_.push_back(std::max(0.0, change.value));
            memory_at_end_.push_back(change.value);
        }
    }
    ends_.resize(2 * p * m);
    rank_end_.resize(p);
    first_start_.resize(p);
    release_.assign(p, 0);
    head_.resize(p);
    count_.resize(3 * p);
    reach_.resize(p * p);
    walk_.resize((p + 1) * p);
}

bool OrderEvaluator::is_allowed(const std::vector<std::uint8_t>& word, int rank) const {
    int counts[3] = {0, 0, 0};
    double held = 0;
    const double limit = problem_.memory_limit.value > 0 ? problem_.memory_limit.value * (1 + 1e-9) : infinite;
    const double* at_start = &memory_at_start_[static_cast<std::size_t>(rank) * 3];
    const double* at_end = &memory_at_end_[static_cast<std::size_t>(rank) * 3];
    for (const std::uint8_t letter : word) {
        ++counts[letter];
        if (counts[I] > counts[F] || counts[W] > counts[I] || held + at_start[letter] > limit) return false;
        held += at_end[letter];
    }
    return true;
}

// Longest paths. source < 0: from time 0 (first actions not before their release); else from the start of that rank's first action alone, what it does not
// reach at minus infinity.
bool OrderEvaluator::relax(const Order& order, int source) {
    const int p = problem_.ranks, m = problem_.micro_batches, length = 3 * m;
    const double transfer = problem_.transfer.value;
    for (int r = 0; r < p; ++r) {
        rank_end_[static_cast<std::size_t>(r)] = source < 0 ? release_[static_cast<std::size_t>(r)] : r == source ? 0 : -infinite;
        head_[static_cast<std::size_t>(r)] = 0;
    }
    std::fill(count_.begin(), count_.end(), 0);
    int done = 0;
    const int total = p * length;
    while (done < total) {
        const int before = done;
        for (int r = 0; r < p; ++r) {
            const std::uint8_t* word = order[static_cast<std::size_t>(r)].data();
            std::int32_t* counts = &count_[static_cast<std::size_t>(r) * 3];
            const double* durations = &durations_[static_cast<std::size_t>(r) * 3];
            double time = rank_end_[static_cast<std::size_t>(r)];
            int head = head_[static_cast<std::size_t>(r)];
            for (; head < length; ++head) {
                const int letter = word[head], k = counts[letter];
                if (letter == F && r > 0) {
                    if (count_[static_cast<std::size_t>(r - 1) * 3 + F] <= k) break;
                    time = std::max(time, ends_[static_cast<std::size_t>((r - 1) * 2 + F) * m + k] + transfer);
                } else if (letter == I && r + 1 < p) {
                    if (count_[static_cast<std::size_t>(r + 1) * 3 + I] <= k) break;
                    time = std::max(time, ends_[static_cast<std::size_t>((r + 1) * 2 + I) * m + k] + transfer);
                }
                if (head == 0) first_start_[static_cast<std::size_t>(r)] = time;
                time += durations[letter];
                if (letter != W) ends_[static_cast<std::size_t>(r * 2 + letter) * m + k] = time;
                ++counts[letter];
            }
            done += head - head_[static_cast<std::size_t>(r)];
            head_[static_cast<std::size_t>(r)] = head;
            rank_end_[static_cast<std::size_t>(r)] = time;
        }
        if (done == before) return false;
    }
    return true;
}

// Ranks may start late, so the smallest L with a timetable in which every rank's last end is within L of its first start is the greatest mean of a cycle of
// longest paths "first start on i to last end on j" (each closed by going back L): Karp's theorem on the p x p matrix of those paths.
double OrderEvaluator::span(const Order& order) {
    const auto p = static_cast<std::size_t>(problem_.ranks);
    for (std::size_t source = 0; source < p; ++source) {
        if (!relax(order, static_cast<int>(source))) return infinite;
        std::copy(rank_end_.begin(), rank_end_.end(), reach_.begin() + static_cast<std::ptrdiff_t>(source * p));
    }
    double best = -infinite;
    mean_ = 0;
    for (std::size_t i = 0; i < p; ++i) {
        best = std::max(best, reach_[i * p + i]);
        mean_ += reach_[i * p + i] / static_cast<double>(p);
    }
    // walk_[k][v]: heaviest walk of k edges from anywhere to v.
    std::fill(walk_.begin(), walk_.begin() + static_cast<std::ptrdiff_t>(p), 0);
    for (std::size_t k = 1; k <= p; ++k)
        for (std::size_t v = 0; v < p; ++v) {
            double heaviest = -infinite;
            for (std::size_t u = 0; u < p; ++u) heaviest = std::max(heaviest, walk_[(k - 1) * p + u] + reach_[u * p + v]);
            walk_[k * p + v] = heaviest;
        }
    for (std::size_t v = 0; v < p; ++v) {
        if (walk_[p * p + v] == -infinite) continue;
        double least = infinite;
        for (std::size_t k = 0; k < p; ++k) least = std::min(least, (walk_[p * p + v] - walk_[k * p + v]) / static_cast<double>(p - k));
        best = std::max(best, least);
    }
    return best;
}

double OrderEvaluator::evaluate(const Order& order) {
    if (problem_.objective == OrderObjective::span) return span(order);
    if (!relax(order, -1)) return infinite;
    mean_ = 0;
    for (const double end : rank_end_) mean_ += end / static_cast<double>(rank_end_.size());
    return *std::max_element(rank_end_.begin(), rank_end_.end());
}

std::vector<core::Seconds> OrderEvaluator::releases(const Order& order, double objective) {
    const auto p = static_cast<std::size_t>(problem_.ranks);
    std::fill(release_.begin(), release_.end(), 0.0);
    if (problem_.objective == OrderObjective::span) {
        const double slack = 1e-9 * objective;
        for (std::size_t round = 0; round <= p + 1; ++round) {
            if (!relax(order, -1)) break;
            bool has_moved = false;
            for (std::size_t r = 0; r < p; ++r) {
                if (rank_end_[r] - first_start_[r] <= objective + slack) continue;
                release_[r] = rank_end_[r] - objective;
                has_moved = true;
            }
            if (!has_moved) break;
        }
    }
    std::vector<core::Seconds> result;
    for (const double release : release_) result.push_back(core::Seconds(release));
    std::fill(release_.begin(), release_.end(), 0.0);
    return result;
}

schedule::Schedule to_schedule(const OrderProblem& problem, const Order& order) {
    schedule::Schedule result;
    result.name = "auto";
    result.ranks = result.stages = problem.ranks;
    result.micro_batches = problem.micro_batches;
    for (int rank = 0; rank < problem.ranks; ++rank) {
        std::vector<schedule::Action>& list = result.actions.emplace_back();
        int counts[3] = {0, 0, 0};
        constexpr schedule::ActionKind kinds[3] = {schedule::ActionKind::forward, schedule::ActionKind::backward_input, schedule::ActionKind::backward_weight};
        for (const std::uint8_t letter : order[static_cast<std::size_t>(rank)]) list.push_back({kinds[letter], rank, counts[letter]++});
    }
    return result;
}

Order to_order(const schedule::Schedule& schedule) {
    Order order;
    for (const std::vector<schedule::Action>& list : schedule.actions) {
        std::vector<std::uint8_t>& word = order.emplace_back();
        for (const schedule::Action& action : list) {
            core::require(action.stage == static_cast<int>(order.size()) - 1, "one virtual stage per rank");
            switch (action.kind) {
                case schedule::ActionKind::forward: word.push_back(F); break;
                case schedule::ActionKind::backward: word.insert(word.end(), {I, W}); break;
                case schedule::ActionKind::backward_input: word.push_back(I); break;
                case schedule::ActionKind::backward_weight: word.push_back(W); break;
                default: break;
            }
        }
    }
    return order;
}

}  // namespace planner
