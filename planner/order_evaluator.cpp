#include "planner/order_evaluator.h"

#include <algorithm>
#include <limits>

#include "core/diagnostics.h"

namespace planner {

namespace {
constexpr double infinite = std::numeric_limits<double>::infinity();
}

OrderEvaluator::OrderEvaluator(const OrderProblem& problem) : problem_(problem), letters_(3 * problem.chunks) {
    const auto p = static_cast<std::size_t>(problem.ranks), m = static_cast<std::size_t>(problem.micro_batches);
    const int stages = problem.ranks * problem.chunks;
    core::require(problem.stages.size() == static_cast<std::size_t>(stages), "one cost per virtual stage");
    for (int rank = 0; rank < problem.ranks; ++rank)
        for (int chunk = 0; chunk < problem.chunks; ++chunk) {
            const int s = problem.stage_of(rank, chunk);
            const sim::StageCost& cost = problem.stages[static_cast<std::size_t>(s)];
            auto fact = [&](core::Seconds duration, int needs_stage, int kind, core::Bytes change) {
                LetterFacts facts{.duration = duration.value, .memory_at_start = std::max(0.0, change.value), .memory_at_end = change.value};
                if (kind < 2) facts.makes = 2 * s + kind;
                if (needs_stage >= 0 && needs_stage < stages) {
                    facts.needs = 2 * needs_stage + kind;
                    facts.delay = problem.rank_of(needs_stage) == rank ? 0 : problem.transfer.value;
                }
                facts_.push_back(facts);
            };
            fact(cost.forward, s - 1, 0, cost.memory_forward);
            fact(cost.backward_input, s + 1, 1, cost.memory_backward_input);
            fact(cost.backward_weight, -1, 2, cost.memory_backward_weight);
        }
    ends_.resize(2 * static_cast<std::size_t>(stages) * m);
    made_.resize(2 * static_cast<std::size_t>(stages));
    rank_end_.resize(p);
    first_start_.resize(p);
    release_.assign(p, 0);
    head_.resize(p);
    count_.resize(static_cast<std::size_t>(letters_) * p);
    word_counts_.resize(static_cast<std::size_t>(letters_));
    reach_.resize(p * p);
    walk_.resize((p + 1) * p);
}

bool OrderEvaluator::is_allowed(const Word& word, int rank) {
    std::fill(word_counts_.begin(), word_counts_.end(), 0);
    double held = 0;
    const double limit = problem_.memory_limit.value > 0 ? problem_.memory_limit.value * (1 + 1e-9) : infinite;
    const LetterFacts* facts = &facts_[static_cast<std::size_t>(rank * letters_)];
    for (const std::uint8_t letter : word) {
        const std::int32_t count = ++word_counts_[letter];
        // I follows F and W follows I of its own virtual stage.
        if (letter % 3 != F && count > word_counts_[letter - 1u]) return false;
        if (held + facts[letter].memory_at_start > limit) return false;
        held += facts[letter].memory_at_end;
    }
    return true;
}

// Longest paths. source < 0: from time 0 (first actions not before their release); else from the start of that rank's first action alone, what it does not
// reach at minus infinity.
bool OrderEvaluator::relax(const Order& order, int source) {
    const int p = problem_.ranks, m = problem_.micro_batches, length = problem_.word_length();
    for (int r = 0; r < p; ++r) {
        rank_end_[static_cast<std::size_t>(r)] = source < 0 ? release_[static_cast<std::size_t>(r)] : r == source ? 0 : -infinite;
        head_[static_cast<std::size_t>(r)] = 0;
    }
    std::fill(count_.begin(), count_.end(), 0);
    std::fill(made_.begin(), made_.end(), 0);
    int done = 0;
    const int total = p * length;
    while (done < total) {
        const int before = done;
        for (int r = 0; r < p; ++r) {
            const std::uint8_t* word = order[static_cast<std::size_t>(r)].data();
            std::int32_t* counts = &count_[static_cast<std::size_t>(r * letters_)];
            const LetterFacts* facts = &facts_[static_cast<std::size_t>(r * letters_)];
            double time = rank_end_[static_cast<std::size_t>(r)];
            int head = head_[static_cast<std::size_t>(r)];
            for (; head < length; ++head) {
                const LetterFacts& fact = facts[word[head]];
                const int k = counts[word[head]];
                if (fact.needs >= 0) {
                    if (made_[static_cast<std::size_t>(fact.needs)] <= k) break;
                    time = std::max(time, ends_[static_cast<std::size_t>(fact.needs * m + k)] + fact.delay);
                }
                if (head == 0) first_start_[static_cast<std::size_t>(r)] = time;
                time += fact.duration;
                if (fact.makes >= 0) {
                    ends_[static_cast<std::size_t>(fact.makes * m + k)] = time;
                    made_[static_cast<std::size_t>(fact.makes)] = k + 1;
                }
                ++counts[word[head]];
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
    result.ranks = problem.ranks;
    result.stages = problem.ranks * problem.chunks;
    result.micro_batches = problem.micro_batches;
    result.placement = problem.placement;
    for (int rank = 0; rank < problem.ranks; ++rank) {
        std::vector<schedule::Action>& list = result.actions.emplace_back();
        std::vector<std::int32_t> counts(static_cast<std::size_t>(3 * problem.chunks), 0);
        constexpr schedule::ActionKind kinds[3] = {schedule::ActionKind::forward, schedule::ActionKind::backward_input, schedule::ActionKind::backward_weight};
        for (const std::uint8_t letter : order[static_cast<std::size_t>(rank)]) list.push_back({kinds[letter % 3], problem.stage_of(rank, letter / 3), counts[letter]++});
    }
    return result;
}

Order to_order(const OrderProblem& problem, const schedule::Schedule& schedule) {
    Order order;
    for (const std::vector<schedule::Action>& list : schedule.actions) {
        const int rank = static_cast<int>(order.size());
        Word& word = order.emplace_back();
        for (const schedule::Action& action : list) {
            int chunk = 0;
            while (chunk < problem.chunks && problem.stage_of(rank, chunk) != action.stage) ++chunk;
            core::require(chunk < problem.chunks, "virtual stages lie as in the problem");
            const auto first = static_cast<std::uint8_t>(3 * chunk);
            auto put = [&](Letter letter) { word.push_back(static_cast<std::uint8_t>(first + letter)); };
            if (action.kind == schedule::ActionKind::forward) put(F);
            if (action.kind == schedule::ActionKind::backward || action.kind == schedule::ActionKind::backward_input) put(I);
            if (action.kind == schedule::ActionKind::backward || action.kind == schedule::ActionKind::backward_weight) put(W);
        }
    }
    return order;
}

}  // namespace planner
