#include "planner/order/list_order.h"

#include <algorithm>
#include <limits>

#include "core/index/integers.h"

namespace planner {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

class ListScheduler {
public:
    ListScheduler(const OrderGraph& graph, const ListRule& rule)
        : graph_(graph),
          problem_(graph.problem()),
          rule_(rule),
          letters_(letters_of_stage * problem_.chunks),
          tails_(graph.longest_to_end(std::nullopt)),
          ranks_(problem_.ranks),
          ends_(graph.actions(), never) {
        slack_ = rounding * graph.greatest_duration();
        for (Rank& rank : ranks_) rank.counts.assign(letters_, 0);
    }

    std::optional<Order> run() {
        const int total = graph_.actions();
        for (int placed = 0; placed < total;) {
            std::optional<int> chosen;
            for (int r = 0; r < problem_.ranks; ++r)
                if (!at(r).is_blocked && core::count_of(at(r).word) < problem_.word_length() &&
                    (!chosen || at(r).clock < at(*chosen).clock))
                    chosen = r;
            if (!chosen) return std::nullopt;
            placed += decide(*chosen);
        }
        Order order;
        for (Rank& rank : ranks_) order.push_back(std::move(rank.word));
        return order;
    }

private:
    struct Rank {
        Word word;
        std::vector<int> counts;  // by letter
        double clock = 0, held = 0, reserved = 0;
        bool is_blocked = false;  // nothing is known to come before a neighbour acts
    };

    Rank& at(int r) { return ranks_[r]; }
    int action_of(int r, int letter) { return graph_.action(r, letter, at(r).counts[letter]); }

    // When the input of the letter's next action is there; `never` when it is not made yet or there is no
    // such action.
    double arrival(int r, int letter) {
        const int k = at(r).counts[letter], kind = letter % letters_of_stage,
                  stage = problem_.stage_of(r, letter / letters_of_stage);
        if (k >= problem_.micro_batches) return never;
        // On the rank itself: I after F, W after I.
        if (kind != F && k >= at(r).counts[letter - 1]) return never;
        const int from = kind == F ? stage - 1 : stage + 1;
        if (kind == W || from < 0 || from >= problem_.ranks * problem_.chunks) return 0;
        const int rank = problem_.rank_of(from);
        int chunk = 0;
        while (problem_.stage_of(rank, chunk) != from) ++chunk;
        return ends_[graph_.action(rank, letters_of_stage * chunk + kind, k)] +
               (rank == r ? 0 : problem_.transfer.value);
    }

    double forwards_memory(int r) const {
        double sum = 0;
        for (int chunk = 0; chunk < problem_.chunks; ++chunk)
            sum += std::max(0.0, graph_.memory_change(graph_.action(r, letters_of_stage * chunk + F, 0)));
        return sum;
    }
    bool is_admitted(int r, int letter) {
        if (letter != F) return true;
        const int in_flight = at(r).counts[F] - at(r).counts[W];
        if (in_flight >= std::max(1, rule_.most_admitted - (rule_.falls_along_ranks ? r : 0))) return false;
        return at(r).held + at(r).reserved + forwards_memory(r) <= problem_.greatest_memory();
    }
    bool has_room(int r, int letter) {
        return at(r).held + std::max(0.0, graph_.memory_change(action_of(r, letter))) <=
               problem_.greatest_memory();
    }

    int put(int r, int letter) {
        Rank& rank = at(r);
        const int action = action_of(r, letter);
        const double begin = rank.clock;
        rank.clock = ends_[action] = begin + graph_.duration(action);
        rank.held += graph_.memory_change(action);
        if (letter == F) rank.reserved += forwards_memory(r) - std::max(0.0, graph_.memory_change(action));
        else if (letter % letters_of_stage == F) rank.reserved -= std::max(0.0, graph_.memory_change(action));
        ++rank.counts[letter];
        rank.word.push_back(static_cast<std::uint8_t>(letter));
        for (Rank& other : ranks_) {
            if (!other.is_blocked) continue;
            other.is_blocked = false;
            other.clock = std::max(other.clock, begin);
        }
        return 1;
    }

    // What the rank does at its clock; 0 when it waits (its clock moves on).
    int decide(int r) {
        Rank& rank = at(r);
        std::optional<int> ready, weight;
        double soonest = never;
        for (int letter = 0; letter < letters_; ++letter) {
            const double when = arrival(r, letter);
            if (when == never) continue;
            if (letter % letters_of_stage == W) {
                if (!weight || tail(r, letter) > tail(r, *weight)) weight = letter;
                continue;
            }
            if (!is_admitted(r, letter) || !has_room(r, letter)) continue;
            if (when > rank.clock + slack_) soonest = std::min(soonest, when);
            else if (!ready || goes_before(r, letter, *ready)) ready = letter;
        }
        if (ready) return put(r, *ready);
        if (weight &&
            (rule_.fills_always || rank.clock + graph_.duration(action_of(r, *weight)) <= soonest + slack_))
            return put(r, *weight);
        if (soonest < never) rank.clock = soonest;
        else rank.is_blocked = true;
        return 0;
    }
    double tail(int r, int letter) { return tails_[action_of(r, letter)]; }
    bool goes_before(int r, int letter, int other) {
        if (rule_.prefers_gradients && (letter % letters_of_stage == I) != (other % letters_of_stage == I))
            return letter % letters_of_stage == I;
        return tail(r, letter) > tail(r, other);
    }

    const OrderGraph& graph_;
    const OrderProblem& problem_;
    ListRule rule_;
    int letters_;
    std::vector<double> tails_;
    std::vector<Rank> ranks_;
    std::vector<double> ends_;
    double slack_ = 0;
};

}  // namespace

std::optional<Order> list_order(const OrderGraph& graph, const ListRule& rule) {
    return ListScheduler(graph, rule).run();
}

}  // namespace planner
