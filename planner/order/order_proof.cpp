#include "planner/order/order_proof.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/order/order_graph.h"

namespace planner {

namespace {

// Weight of a pair's roomier side where pairs are compared by the room that both sides leave.
constexpr double roomier_side = 0.5;
constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

// Longest paths between the starts of all actions; for the makespan one more node, the common origin.
class Closure {
public:
    explicit Closure(const OrderGraph& graph) : graph_(&graph) {
        const bool has_origin = graph.problem().objective == OrderObjective::makespan;
        nodes_ = graph.actions() + (has_origin ? 1 : 0);
        slack_ = rounding * std::max(graph.greatest_duration(), graph.problem().transfer.value);
        for (int action = 0; action < graph.actions(); ++action) {
            const std::vector<double> row = graph.longest_from(action);
            distance_.insert(distance_.end(), row.begin(), row.end());
            if (has_origin) distance_.push_back(minus_infinity);
        }
        if (!has_origin) return;
        const std::vector<double> row = graph.longest_from(std::nullopt);
        distance_.insert(distance_.end(), row.begin(), row.end());
        distance_.push_back(0);
    }

    double distance(int from, int to) const { return distance_[from * nodes_ + to]; }
    double slack() const { return slack_; }
    bool precedes(int first, int second) const {
        return distance(first, second) >= graph_->duration(first) - slack_;
    }
    bool may_precede(int first, int second) const {
        return distance(second, first) + graph_->duration(first) <= slack_;
    }
    int origin_of(int rank) const {
        return graph_->problem().objective == OrderObjective::makespan ? graph_->actions()
                                                                       : graph_->first_of(rank);
    }

    // Every rank ends within `target` of its origin. False when that is seen to be impossible: a cycle of
    // positive length.
    bool aim(double target) {
        target_ = target;
        const OrderProblem& problem = graph_->problem();
        for (int rank = 0; rank < problem.ranks; ++rank)
            for (int chunk = 0; chunk < problem.chunks; ++chunk) {
                const int last =
                    graph_->action(rank, letters_of_stage * chunk + W, problem.micro_batches - 1);
                if (!add(last, origin_of(rank), graph_->duration(last) - target)) return false;
            }
        return true;
    }

    bool precede(int first, int second) { return add(first, second, graph_->duration(first)); }

    bool fits_rank(int rank) const {
        const int origin = origin_of(rank), begin = graph_->first_of(rank);
        std::vector<Job> jobs;
        for (int action = begin; action < begin + graph_->problem().word_length(); ++action) {
            // The latest start, -distance(action, origin), leaves the tail to the target.
            const double tail = target_ + distance(action, origin) - graph_->duration(action);
            jobs.push_back({distance(origin, action), graph_->duration(action), tail});
        }
        return one_machine_bound(jobs) <= target_ + slack_;
    }

private:
    bool add(int from, int to, double length) {
        if (distance(from, to) >= length - slack_) return true;
        if (distance(to, from) + length > slack_) return false;
        const double* onward = &distance_[to * nodes_];
        for (std::size_t i = 0; i < nodes_; ++i) {
            double* row = &distance_[i * nodes_];
            const double through = row[from] + length;
            if (through <= row[to]) continue;
            for (std::size_t j = 0; j < nodes_; ++j) row[j] = std::max(row[j], through + onward[j]);
        }
        return true;
    }

    const OrderGraph* graph_;
    std::size_t nodes_ = 0;
    double slack_ = 0, target_ = 0;
    std::vector<double> distance_;
};

struct Pair {
    int first = 0, second = 0;
};

class Tree {
public:
    Tree(const OrderGraph& graph, double target, std::int64_t node_budget)
        : graph_(graph),
          problem_(graph.problem()),
          evaluator_(problem_),
          target_(target),
          budget_(node_budget) {
        for (int rank = 0; rank < problem_.ranks; ++rank) {
            const int begin = graph.first_of(rank), end = begin + problem_.word_length();
            for (int a = begin; a < end; ++a)
                for (int b = a + 1; b < end; ++b) pairs_.push_back({a, b});
        }
    }

    OrderSearch search(Closure root) {
        result_.is_complete = !root.aim(target_) || visit(std::move(root), pairs_);
        result_.is_complete = result_.is_complete && !result_.order;
        return std::move(result_);
    }

    // Does what is forced alone show that the target is out of reach?
    bool is_refuted_at_root(Closure root) {
        std::vector<Pair> open = pairs_;
        return !root.aim(target_) || !settle(root, open);
    }

private:
    // Decides what is forced until nothing more is; leaves in `open` what is not decided.
    bool settle(Closure& closure, std::vector<Pair>& open) {
        for (bool has_changed = true; has_changed;) {
            has_changed = false;
            std::size_t kept = 0;
            for (const Pair& pair : open) {
                const int a = pair.first, b = pair.second;
                if (closure.precedes(a, b) || closure.precedes(b, a)) continue;
                const bool may_lead = closure.may_precede(a, b), may_follow = closure.may_precede(b, a);
                if (!may_lead && !may_follow) return false;
                if (may_lead && may_follow) {
                    open[kept++] = pair;
                    continue;
                }
                if (!(may_lead ? closure.precede(a, b) : closure.precede(b, a))) return false;
                has_changed = true;
            }
            open.resize(kept);
            if (has_changed) continue;
            for (int rank = 0; rank < problem_.ranks; ++rank)
                if (!closure.fits_rank(rank) || !settle_memory(closure, rank, has_changed)) return false;
        }
        return true;
    }

    // Where an action takes memory: with all that may release it before and nothing that may take it, it has
    // to fit; what decides that is forced.
    bool settle_memory(Closure& closure, int rank, bool& has_changed) {
        if (!problem_.memory_limit) return true;
        const double limit = problem_.greatest_memory();
        const int begin = graph_.first_of(rank), end = begin + problem_.word_length();
        for (int taker = begin; taker < end; ++taker) {
            if (graph_.memory_change(taker) <= 0) continue;
            double held = graph_.memory_change(taker);
            for (int other = begin; other < end; ++other) {
                if (other == taker) continue;
                const double change = graph_.memory_change(other);
                if (change > 0 ? closure.precedes(other, taker) : !closure.precedes(taker, other))
                    held += change;
            }
            if (held > limit) return false;
            for (int other = begin; other < end; ++other) {
                const double change = graph_.memory_change(other);
                if (other == taker || change == 0 || held + std::abs(change) <= limit ||
                    closure.precedes(other, taker) || closure.precedes(taker, other))
                    continue;
                if (!(change < 0 ? closure.precede(other, taker) : closure.precede(taker, other)))
                    return false;
                has_changed = true;
            }
        }
        return true;
    }

    // True when the subtree was seen whole.
    bool visit(Closure closure, std::vector<Pair> open) {
        if (++result_.nodes > budget_) return false;
        if (!settle(closure, open)) return true;
        if (open.empty()) {
            accept(closure);
            return true;
        }
        // The pair whose better side has the least room; that side first.
        double least = std::numeric_limits<double>::infinity();
        Pair chosen;
        for (const Pair& pair : open) {
            const double lead = -(closure.distance(pair.second, pair.first) + graph_.duration(pair.first));
            const double follow = -(closure.distance(pair.first, pair.second) + graph_.duration(pair.second));
            const double room = std::min(lead, follow) + roomier_side * std::max(lead, follow);
            if (room >= least - closure.slack()) continue;
            least = room;
            chosen = lead >= follow ? pair : Pair{pair.second, pair.first};
        }
        for (const bool is_reversed : {false, true}) {
            Closure child = closure;
            const bool holds = is_reversed ? child.precede(chosen.second, chosen.first)
                                           : child.precede(chosen.first, chosen.second);
            if (holds && !visit(std::move(child), open)) return false;
            if (result_.order) return true;
        }
        return true;
    }

    // All pairs are decided: read the words off, and let memory and the exact evaluation judge.
    void accept(const Closure& closure) {
        Order order;
        for (int rank = 0; rank < problem_.ranks; ++rank) {
            const int begin = graph_.first_of(rank), length = problem_.word_length();
            std::vector<std::pair<double, int>> nodes;
            for (int node = begin; node < begin + length; ++node)
                nodes.push_back({closure.distance(begin, node), node});
            std::sort(nodes.begin(), nodes.end());
            Word& word = order.emplace_back();
            for (const auto& [start, node] : nodes)
                word.push_back(static_cast<std::uint8_t>((node - begin) / problem_.micro_batches));
            if (!evaluator_.is_allowed(word, rank)) return;
        }
        if (evaluator_.evaluate(order) <= target_ * (1 + rounding)) result_.order = std::move(order);
    }

    const OrderGraph& graph_;
    const OrderProblem& problem_;
    OrderEvaluator evaluator_;
    double target_;
    std::int64_t budget_;
    std::vector<Pair> pairs_;
    OrderSearch result_;
};

}  // namespace

OrderSearch find_order(const OrderProblem& problem, double target, std::int64_t node_budget) {
    const OrderGraph graph(problem);
    return Tree(graph, target, node_budget).search(Closure(graph));
}

double propagated_bound(const OrderProblem& problem, double known, double objective) {
    const OrderGraph graph(problem);
    const Closure closure(graph);
    double low = known, high = objective;
    // Bisection: twelve halvings leave a four-thousandth of the gap, or less than the precision asked for.
    constexpr int steps = 12;
    constexpr double precision = 1e-6;  // share of the bound
    for (int step = 0; step < steps && high - low > precision * high; ++step) {
        const double middle = 0.5 * (low + high);
        if (Tree(graph, middle, 0).is_refuted_at_root(closure)) low = middle;
        else high = middle;
    }
    return low;
}

}  // namespace planner
