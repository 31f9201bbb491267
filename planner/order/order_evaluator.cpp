#include "planner/order/order_evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "core/index/integers.h"

namespace planner {

namespace {
constexpr double infinite = std::numeric_limits<double>::infinity();
// Fronts kept along a play: after each 24th of the actions.
constexpr std::size_t fronts = 24;
}  // namespace

OrderEvaluator::OrderEvaluator(const OrderProblem& problem)
    : problem_(problem), letters_(letters_of_stage * problem.chunks) {
    const std::size_t p = problem.ranks, m = problem.micro_batches;
    const int stages = problem.ranks * problem.chunks;
    core::require(std::cmp_equal(problem.stages.size(), stages), "one cost per virtual stage");
    core::require(!problem.memory_limit || std::isfinite(problem.memory_limit->value),
                  "a problem without a memory limit has none, not an infinite one");
    for (int rank = 0; rank < problem.ranks; ++rank)
        for (int chunk = 0; chunk < problem.chunks; ++chunk) {
            const int s = problem.stage_of(rank, chunk);
            const sim::StageCost& cost = problem.stages[s];
            auto fact = [&](core::Seconds duration, int needs_stage, int kind, core::Bytes change) {
                LetterFacts facts{.duration = duration.value,
                                  .memory_at_start = std::max(0.0, change.value),
                                  .memory_at_end = change.value};
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
    Paths empty;
    empty.ends.resize(2 * m * stages);
    empty.kept.resize(fronts);
    paths_.assign(problem.objective == OrderObjective::span ? p : 1, empty);
    tried_ = paths_;
    played_at_.resize(p * problem.word_length());
    tried_at_ = played_at_;
    release_.assign(p, 0);
    word_counts_.resize(letters_);
    reach_.resize(p * p);
    walk_.resize((p + 1) * p);
}

bool OrderEvaluator::is_allowed(const Word& word, int rank) {
    std::fill(word_counts_.begin(), word_counts_.end(), 0);
    double held = 0;
    const double limit = problem_.greatest_memory();
    const LetterFacts* facts = &facts_[rank * letters_];
    for (const std::uint8_t letter : word) {
        const std::int32_t count = ++word_counts_[letter];
        // I follows F and W follows I of its own virtual stage.
        if (letter % letters_of_stage != F && count > word_counts_[letter - 1u]) return false;
        if (held + facts[letter].memory_at_start > limit) return false;
        held += facts[letter].memory_at_end;
    }
    return true;
}

// Without a source everything may start at time 0, first actions not before their release. With one, only
// that rank's first action starts at time 0, and what it does not reach is at minus infinity.
OrderEvaluator::Front OrderEvaluator::start_of(std::optional<int> source) const {
    const std::size_t p = problem_.ranks;
    Front front;
    front.done = 0;
    front.head.assign(p, 0);
    front.count.assign(letters_ * p, 0);
    front.made.assign(2 * p * problem_.chunks, 0);
    front.first_start.assign(p, 0);
    for (std::size_t r = 0; r < p; ++r)
        front.rank_end.push_back(!source ? release_[r] : static_cast<int>(r) == *source ? 0 : -infinite);
    return front;
}

bool OrderEvaluator::play(const Order& order, Front from, Paths& paths, std::vector<std::int32_t>& played_at,
                          const Paths* known, const std::vector<Change>& changes) const {
    const int p = problem_.ranks, m = problem_.micro_batches, length = problem_.word_length(),
              total = p * length;
    Front& front = paths.last;
    front = std::move(from);
    double* const ends = paths.ends.data();
    std::size_t next_kept = 0;
    auto threshold = [&](std::size_t i) {
        return static_cast<std::int32_t>(static_cast<std::size_t>(total) * (i + 1) / (fronts + 1));
    };
    while (next_kept < fronts && threshold(next_kept) <= front.done) ++next_kept;
    for (std::size_t i = next_kept; i < fronts; ++i) paths.kept[i].done = none;
    int idle_ranks = 0;
    while (front.done < total) {
        const int r = front.next_rank;
        front.next_rank = r + 1 < p ? r + 1 : 0;
        const std::uint8_t* word = order[r].data();
        std::int32_t* counts = &front.count[r * letters_];
        std::int32_t* at = &played_at[r * length];
        const LetterFacts* facts = &facts_[r * letters_];
        double time = front.rank_end[r];
        const int begin = front.head[r];
        int head = begin;
        for (; head < length; ++head) {
            const LetterFacts& fact = facts[word[head]];
            const int k = counts[word[head]];
            if (fact.needs != none) {
                if (front.made[fact.needs] <= k) break;
                time = std::max(time, ends[fact.needs * m + k] + fact.delay);
            }
            if (head == 0) front.first_start[r] = time;
            time += fact.duration;
            if (fact.makes != none) {
                ends[fact.makes * m + k] = time;
                front.made[fact.makes] = k + 1;
            }
            at[head] = front.done + head - begin;
            ++counts[word[head]];
        }
        idle_ranks = head > begin ? 0 : idle_ranks + 1;
        if (idle_ranks >= p) return false;
        front.done += head - begin;
        front.head[r] = head;
        front.rank_end[r] = time;
        if (next_kept >= fronts || front.done < threshold(next_kept)) continue;
        while (next_kept < fronts && threshold(next_kept) <= front.done) ++next_kept;
        Front& kept = paths.kept[next_kept - 1];
        kept = front;
        if (!known) continue;
        const Front& other = known->kept[next_kept - 1];
        const bool is_behind_changes = std::all_of(changes.begin(), changes.end(), [&](const Change& change) {
            return front.head[change.rank] > change.last;
        });
        const bool is_same = is_behind_changes && other.done == front.done &&
                             other.next_rank == front.next_rank && other.head == front.head &&
                             other.rank_end == front.rank_end && other.first_start == front.first_start &&
                             other.count == front.count && paths.ends == known->ends;
        if (!is_same) continue;
        paths.shared_from = next_kept;
        front = known->last;
        return true;
    }
    return true;
}

double OrderEvaluator::objective_of(const std::vector<Paths>& paths) {
    if (problem_.objective == OrderObjective::span) return span_of(paths);
    const std::vector<double>& rank_end = paths.front().last.rank_end;
    mean_ = 0;
    for (const double end : rank_end) mean_ += end / static_cast<double>(rank_end.size());
    return *std::max_element(rank_end.begin(), rank_end.end());
}

std::optional<int> OrderEvaluator::source_of(std::size_t path) const {
    if (problem_.objective == OrderObjective::makespan) return std::nullopt;
    return static_cast<int>(path);
}

double OrderEvaluator::evaluate(const Order& order) {
    for (std::size_t i = 0; i < paths_.size(); ++i)
        if (!play(order, start_of(source_of(i)), paths_[i], played_at_, nullptr, {})) return infinite;
    return objective_of(paths_);
}

double OrderEvaluator::try_change(const Order& order, const std::vector<Change>& changes) {
    std::int32_t before = std::numeric_limits<std::int32_t>::max();
    for (const Change& change : changes)
        before = std::min(before, played_at_[change.rank * problem_.word_length() + change.first]);
    tried_at_ = played_at_;
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        const Paths& known = paths_[i];
        Paths& tried = tried_[i];
        tried.ends = known.ends;
        tried.shared_before = 0;
        tried.shared_from = fronts;
        const Front* from = nullptr;
        for (std::size_t f = 0; f < fronts; ++f) {
            if (known.kept[f].done == none || known.kept[f].done > before) continue;
            from = &known.kept[f];
            tried.shared_before = f + 1;
        }
        if (!play(order, from ? *from : start_of(source_of(i)), tried, tried_at_, &known, changes))
            return infinite;
    }
    return objective_of(tried_);
}

void OrderEvaluator::keep() {
    for (std::size_t i = 0; i < paths_.size(); ++i)
        for (std::size_t f = 0; f < fronts; ++f)
            if (f < tried_[i].shared_before || f >= tried_[i].shared_from)
                std::swap(tried_[i].kept[f], paths_[i].kept[f]);
    std::swap(paths_, tried_);
    std::swap(played_at_, tried_at_);
}

// Ranks may start late, so the smallest L with a timetable in which every rank's last end is within L of its
// first start is the greatest mean of a cycle of longest paths "first start on i to last end on j" (each
// closed by going back L): Karp's theorem on the p x p matrix of those paths.
double OrderEvaluator::span_of(const std::vector<Paths>& paths) {
    const std::size_t p = problem_.ranks;
    for (std::size_t source = 0; source < p; ++source)
        std::copy(paths[source].last.rank_end.begin(), paths[source].last.rank_end.end(),
                  reach_.begin() + static_cast<std::ptrdiff_t>(source * p));
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
            for (std::size_t u = 0; u < p; ++u)
                heaviest = std::max(heaviest, walk_[(k - 1) * p + u] + reach_[u * p + v]);
            walk_[k * p + v] = heaviest;
        }
    for (std::size_t v = 0; v < p; ++v) {
        if (walk_[p * p + v] == -infinite) continue;
        double least = infinite;
        for (std::size_t k = 0; k < p; ++k)
            least = std::min(least, (walk_[p * p + v] - walk_[k * p + v]) / static_cast<double>(p - k));
        best = std::max(best, least);
    }
    return best;
}

std::vector<core::Seconds> OrderEvaluator::releases(const Order& order, double objective) {
    const std::size_t p = problem_.ranks;
    std::fill(release_.begin(), release_.end(), 0.0);
    if (problem_.objective == OrderObjective::span) {
        const double slack = rounding * objective;
        for (std::size_t round = 0; round <= p + 1; ++round) {
            if (!play(order, start_of(std::nullopt), tried_.front(), tried_at_, nullptr, {})) break;
            const Front& front = tried_.front().last;
            bool has_moved = false;
            for (std::size_t r = 0; r < p; ++r) {
                if (front.rank_end[r] - front.first_start[r] <= objective + slack) continue;
                release_[r] = front.rank_end[r] - objective;
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
        std::vector<std::int32_t> counts(letters_of_stage * problem.chunks, 0);
        constexpr schedule::ActionKind kinds[letters_of_stage] = {schedule::ActionKind::forward,
                                                                  schedule::ActionKind::backward_input,
                                                                  schedule::ActionKind::backward_weight};
        for (const std::uint8_t letter : order[rank])
            list.push_back({kinds[letter % letters_of_stage],
                            problem.stage_of(rank, letter / letters_of_stage), counts[letter]++});
    }
    return result;
}

Order to_order(const OrderProblem& problem, const schedule::Schedule& schedule) {
    Order order;
    for (const std::vector<schedule::Action>& list : schedule.actions) {
        const int rank = core::count_of(order);
        Word& word = order.emplace_back();
        for (const schedule::Action& action : list) {
            int chunk = 0;
            while (chunk < problem.chunks && problem.stage_of(rank, chunk) != action.stage) ++chunk;
            core::require(chunk < problem.chunks, "virtual stages lie as in the problem");
            const auto first = static_cast<std::uint8_t>(letters_of_stage * chunk);
            auto put = [&](Letter letter) { word.push_back(static_cast<std::uint8_t>(first + letter)); };
            if (action.kind == schedule::ActionKind::forward) put(F);
            if (action.kind == schedule::ActionKind::backward ||
                action.kind == schedule::ActionKind::backward_input)
                put(I);
            if (action.kind == schedule::ActionKind::backward ||
                action.kind == schedule::ActionKind::backward_weight)
                put(W);
        }
    }
    return order;
}

}  // namespace planner
