#include "planner/order/periodic_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/index/integers.h"
#include "core/random.h"

namespace planner {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

struct Placed {
    double start = 0, duration = 0;
    std::uint8_t letter = 0;
};

// Waits before each pass of the chain (forwards by stage, then backwards from the last stage on), and stages
// whose weights follow their backward at once.
struct Choices {
    std::vector<double> waits;
    std::vector<char> weight_follows;
};

// One micro-batch placed as early as its choices and the period allow: on a rank no two actions of any
// micro-batches may overlap, so their places modulo the period may not either.
class Pattern {
public:
    explicit Pattern(const OrderProblem& problem) : problem_(problem), ranks_(problem.ranks) {}

    // False when the period has no room for it.
    bool place(const Choices& choices, double period) {
        period_ = period;
        for (std::vector<Placed>& placed : ranks_) placed.clear();
        const int stages = problem_.ranks * problem_.chunks;
        double time = 0;
        own_inputs_.assign(stages, 0);
        for (int pass = 0; pass < 2 * stages; ++pass) {
            const bool is_forward = pass < stages;
            const int s = is_forward ? pass : 2 * stages - 1 - pass, before = is_forward ? s - 1 : s + 1;
            const auto& cost = problem_.stages[s];
            if (pass > 0 && pass != stages && problem_.rank_of(before) != problem_.rank_of(s))
                time += problem_.transfer.value;
            const double duration = (is_forward ? cost.forward : cost.backward_input).value;
            const bool follows = !is_forward && choices.weight_follows[s];
            const std::uint8_t letter =
                static_cast<std::uint8_t>(letters_of_stage * chunk_of(s) + (is_forward ? F : I));
            const double start = earliest(s, time + choices.waits[pass],
                                          duration + (follows ? cost.backward_weight.value : 0));
            if (start == infinite) return false;
            std::vector<Placed>& placed = of_stage(s);
            placed.push_back({start, duration, letter});
            time = start + duration;
            if (!is_forward) own_inputs_[s] = time;
            if (follows)
                placed.push_back({time, cost.backward_weight.value, static_cast<std::uint8_t>(letter + 1)});
        }
        for (int s = stages - 1; s >= 0; --s) {
            if (choices.weight_follows[s]) continue;
            const double duration = problem_.stages[s].backward_weight.value;
            const double start = earliest(s, own_inputs_[s], duration);
            if (start == infinite) return false;
            of_stage(s).push_back(
                {start, duration, static_cast<std::uint8_t>(letters_of_stage * chunk_of(s) + W)});
        }
        return true;
    }

    // Memory times time above the limit in one period of the steady state, with a little for every moment
    // above it and for all that is held.
    double excess(double unit_of_memory, double unit_of_time) {
        const double limit = problem_.greatest_memory(), tiny = rounding * period_;
        double over = 0, held_long = 0;
        int times_over = 0;
        for (const std::int32_t rank : core::indices(ranks_)) {
            events_.clear();
            double held = 0;
            for (const Placed& placed : ranks_[rank]) {
                const auto& cost = problem_.stages[problem_.stage_of(rank, placed.letter / letters_of_stage)];
                const double change = (placed.letter % letters_of_stage == F   ? cost.memory_forward
                                       : placed.letter % letters_of_stage == I ? cost.memory_backward_input
                                                                               : cost.memory_backward_weight)
                                          .value;
                if (change == 0) continue;
                const double when = change > 0 ? placed.start : placed.start + placed.duration;
                const double periods = std::floor((when + tiny) / period_);
                held -= periods * change;
                held_long -= change * when;
                events_.push_back({std::max(0.0, when - periods * period_), change});
            }
            std::sort(events_.begin(), events_.end());  // at one time what is given back comes first
            double before = 0;
            for (const auto& [when, change] : events_) {
                over += std::max(0.0, held - limit) * (when - before);
                held += change;
                before = when;
                if (held > limit) ++times_over;
            }
            over += std::max(0.0, held - limit) * (period_ - before);
        }
        keeps_limit_ = times_over == 0;
        // In units of memory times time, chosen by hand: a moment above the limit weighs as a fifth of a
        // unit, so that small excesses go too. All that is held decides between patterns of equal excess.
        constexpr double of_a_moment = 0.2, of_all_held = 1e-3;
        return over / (unit_of_memory * unit_of_time) + of_a_moment * times_over +
               of_all_held * held_long / (unit_of_memory * unit_of_time);
    }

    bool keeps_limit() const { return keeps_limit_; }  // at the last look for excess

    Order words() const {
        Order order;
        for (const std::vector<Placed>& placed : ranks_) {
            std::vector<std::pair<double, std::uint8_t>> all;
            for (const Placed& action : placed)
                for (int k = 0; k < problem_.micro_batches; ++k)
                    all.push_back({action.start + k * period_, action.letter});
            std::sort(all.begin(), all.end());
            Word& word = order.emplace_back();
            for (const auto& [start, letter] : all) word.push_back(letter);
        }
        return order;
    }

private:
    int chunk_of(int stage) const { return stage / problem_.ranks; }
    std::vector<Placed>& of_stage(int stage) { return ranks_[problem_.rank_of(stage)]; }

    // First time from `ready` on at which the rank of the stage is free for `duration` in every period.
    double earliest(int stage, double ready, double duration) {
        const double tiny = rounding * period_;
        if (duration > period_ + tiny) return infinite;
        double time = ready;
        const std::vector<Placed>& placed = of_stage(stage);
        // Each round moves behind at least one action; four passes over all of them cover every period.
        const std::size_t most_rounds = 4 * (placed.size() + 1);
        for (std::size_t round = 0; round < most_rounds; ++round) {
            bool has_moved = false;
            for (const Placed& other : placed) {
                double since = std::fmod(time - other.start, period_);  // of the latest start of the other
                if (since < -tiny) since += period_;
                if (since > period_ - tiny) since = 0;
                if (since < other.duration - tiny) {
                    time += other.duration - since;
                    has_moved = true;
                    continue;
                }
                const double until = period_ - since;  // its next start
                if (since > tiny && until < duration - tiny) {
                    time += until + other.duration;
                    has_moved = true;
                }
            }
            if (!has_moved) return time;
            if (time - ready > period_ + duration) return infinite;
        }
        return infinite;
    }

    const OrderProblem& problem_;
    double period_ = 0;
    bool keeps_limit_ = false;
    std::vector<double> own_inputs_;  // ends of the backwards of the micro-batch at work, by stage
    std::vector<std::vector<Placed>> ranks_;
    std::vector<std::pair<double, double>> events_;
};

class PatternSearch {
public:
    PatternSearch(const OrderProblem& problem, OrderEvaluator& evaluator, std::uint64_t seed)
        : problem_(problem),
          evaluator_(evaluator),
          pattern_(problem),
          random_(seed),
          stages_(problem.ranks * problem.chunks) {
        for (const sim::StageCost& cost : problem.stages) {
            mean_duration_ += (cost.forward + cost.backward_input + cost.backward_weight).value /
                              (static_cast<double>(letters_of_stage) * static_cast<double>(stages_));
            mean_memory_ += std::max(0.0, cost.memory_forward.value) / static_cast<double>(stages_);
        }
        if (mean_memory_ <= 0) mean_memory_ = 1;
    }

    double work() const {
        double most = 0;
        for (int rank = 0; rank < problem_.ranks; ++rank) {
            double sum = 0;
            for (int chunk = 0; chunk < problem_.chunks; ++chunk) {
                const sim::StageCost& cost = problem_.stages[problem_.stage_of(rank, chunk)];
                sum += (cost.forward + cost.backward_input + cost.backward_weight).value;
            }
            most = std::max(most, sum);
        }
        return most;
    }
    // From a micro-batch's first start to its last end, alone: with this period nothing ever waits, and one
    // after the other they need least memory.
    double alone() const {
        double sum = 0;
        for (const sim::StageCost& cost : problem_.stages)
            sum += (cost.forward + cost.backward_input + cost.backward_weight).value;
        return sum + 2.0 * static_cast<double>(stages_) * problem_.transfer.value;
    }

    // An order with this period, if one is found among `patterns`.
    std::optional<Order> find(double period, std::int64_t patterns) {
        Choices current{std::vector<double>(2 * stages_, 0.0), std::vector<char>(stages_, 0)};
        double cost = cost_of(current, period);
        if (std::optional<Order> order = kept_order(cost)) return order;
        const Choices follows{current.waits, std::vector<char>(stages_, 1)};
        const double cost_following = cost_of(follows, period);
        if (std::optional<Order> order = kept_order(cost_following)) return order;
        if (cost_following < cost) {
            current = follows;
            cost = cost_following;
        }
        // Temperatures in the unit of a pattern's excess: from one unit of memory times time down to a
        // fiftieth.
        constexpr double hot = 1.0, cold = 0.02;
        // Waits that are tried, in mean durations; no wait twice, as most passes need none.
        static constexpr std::array<double, 6> waits = {0, 0, 0.5, 1, 2, 3};
        // Of ten changes so many move a weight, the others a wait.
        constexpr std::uint64_t changes = 10, weight_changes = 3;
        for (std::int64_t i = 0; i < patterns; ++i) {
            const double temperature =
                hot * std::pow(cold / hot, static_cast<double>(i) / static_cast<double>(patterns));
            Choices changed = current;
            if (random_.below(changes) < weight_changes) {
                char& follows_now = changed.weight_follows[random_.below(stages_)];
                follows_now = !follows_now;
            } else {
                changed.waits[random_.below(2 * stages_)] =
                    mean_duration_ * waits[random_.below(waits.size())];
            }
            const double changed_cost = cost_of(changed, period);
            if (changed_cost > cost && random_.uniform() >= std::exp((cost - changed_cost) / temperature))
                continue;
            current = std::move(changed);
            cost = changed_cost;
            if (std::optional<Order> order = kept_order(cost)) return order;
        }
        return std::nullopt;
    }

private:
    double cost_of(const Choices& choices, double period) {
        return pattern_.place(choices, period) ? pattern_.excess(mean_memory_, mean_duration_) : infinite;
    }
    // What the pattern placed last gives, when it keeps to memory.
    std::optional<Order> kept_order(double cost) {
        if (cost == infinite || !pattern_.keeps_limit()) return std::nullopt;
        Order order = pattern_.words();
        for (int rank = 0; rank < problem_.ranks; ++rank)
            if (!evaluator_.is_allowed(order[rank], rank)) return std::nullopt;
        return order;
    }

    const OrderProblem& problem_;
    OrderEvaluator& evaluator_;
    Pattern pattern_;
    core::Random random_;
    const std::size_t stages_;
    double mean_duration_ = 0, mean_memory_ = 0;
};

}  // namespace

std::vector<Order> periodic_orders(const OrderProblem& problem, OrderEvaluator& evaluator,
                                   std::int64_t patterns, std::uint64_t seed) {
    PatternSearch search(problem, evaluator, seed);
    std::vector<Order> found;
    // Between what a rank works for each micro-batch and one micro-batch alone.
    double shortest = search.work(), longest = search.alone();
    if (shortest <= 0) return found;
    // Bisection on the logarithm, until a further period is no hundredth shorter.
    constexpr int steps = 8;
    constexpr double worth_a_step = 1.01;
    for (int step = 0; step < steps && longest > shortest * worth_a_step; ++step) {
        const double period = step == 0 ? shortest : std::sqrt(shortest * longest);
        std::optional<Order> order = search.find(period, patterns / steps);
        if (order) {
            found.push_back(std::move(*order));
            longest = period;
        } else {
            shortest = period;
        }
    }
    std::reverse(found.begin(), found.end());
    return found;
}

}  // namespace planner
