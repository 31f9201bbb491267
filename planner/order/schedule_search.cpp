#include "planner/order/schedule_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "core/random.h"
#include "planner/order/list_order.h"
#include "planner/order/order_graph.h"
#include "planner/order/order_proof.h"
#include "planner/order/periodic_order.h"
#include "planner/order/residence_bound.h"
#include "schedule/pipeline/registry.h"

namespace planner {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
// Actions relaxed per second on the slowest machine we know (2.1 GHz server core: 1.5e8), halved.
constexpr double cautious_rate = 7e7;
// A changed order is followed only where its longest paths differ: of long orders a fifth is played.
constexpr double plays_avoided = 5;
// Elements of the closure's table touched per second, likewise; a node of the tree decides some twenty pairs.
constexpr double cautious_table_rate = 4e8, tables_per_node = 12;
// Stages placed per second in patterns of periodic orders, likewise; half of the time is theirs.
constexpr double cautious_pattern_rate = 0.5 * 1.2e7;
// Share of the time that annealing has where branch and bound has the rest.
constexpr double annealing_share = 0.5;
// Share of an objective below which two objectives are the same: sums of the same durations in another order.
constexpr double same_objective = 1e-12;

schedule::PipelineShape shape_of(const OrderProblem& problem) {
    schedule::PipelineShape shape;
    shape.ranks = problem.ranks;
    shape.chunks = problem.chunks;
    shape.micro_batches = problem.micro_batches;
    shape.transfer = problem.transfer.value;
    for (const sim::StageCost& cost : problem.stages)
        shape.stage_costs.push_back({cost.forward.value, cost.backward_input.value,
                                     cost.backward_weight.value, cost.memory_forward.value,
                                     cost.memory_backward_input.value, cost.memory_backward_weight.value});
    double most = 0;
    for (const sim::StageCost& cost : problem.stages)
        most = std::max(most, std::max(0.0, cost.memory_forward.value) +
                                  std::max(0.0, cost.memory_backward_input.value) +
                                  std::max(0.0, cost.memory_backward_weight.value));
    shape.memory_limit = problem.memory_limit ? problem.memory_limit->value
                                              : std::max(1.0, most * problem.chunks * problem.micro_batches);
    return shape;
}

bool is_provable(const OrderProblem& problem) {
    return problem.ranks * problem.word_length() <= most_provable_actions &&
           std::all_of(problem.stages.begin(), problem.stages.end(), [](const sim::StageCost& cost) {
               return cost.forward.value > 0 && cost.backward_input.value > 0 &&
                      cost.backward_weight.value > 0;
           });
}

struct Start {
    std::string name;
    Order order;
    double objective = infinite;
};

// One micro-batch after the other: forwards through the rank's virtual stages, then back.
Word serial_word(const OrderProblem& problem) {
    Word word;
    for (int k = 0; k < problem.micro_batches; ++k) {
        for (int chunk = 0; chunk < problem.chunks; ++chunk)
            word.push_back(static_cast<std::uint8_t>(letters_of_stage * chunk + F));
        for (int chunk = problem.chunks - 1; chunk >= 0; --chunk)
            word.insert(word.end(), {static_cast<std::uint8_t>(letters_of_stage * chunk + I),
                                     static_cast<std::uint8_t>(letters_of_stage * chunk + W)});
    }
    return word;
}

// What every published order gives here, and one micro-batch after the other, which fits where anything does;
// where memory keeps these from `bound`, orders that repeat as well.
std::vector<Start> starts_of(const OrderProblem& problem, OrderEvaluator& evaluator, double bound,
                             const SearchBudget& budget) {
    std::vector<Start> starts;
    auto add = [&](const std::string& name, Order order) {
        for (int rank = 0; rank < problem.ranks; ++rank)
            if (!evaluator.is_allowed(order[rank], rank)) return;
        const double objective = evaluator.evaluate(order);
        if (std::isfinite(objective)) starts.push_back({name, std::move(order), objective});
    };
    const schedule::PipelineShape shape = shape_of(problem);
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        if (entry.is_forward_only || entry.is_asynchronous || entry.is_bidirectional ||
            entry.cuts_sequences() || schedule::unsupported(entry, shape))
            continue;
        const schedule::Schedule made = entry.generate(shape);
        if (problem.chunks == 1 || made.placement == problem.placement)
            add(entry.name, to_order(problem, made));
    }
    const OrderGraph graph(problem);
    const int whole = problem.ranks * problem.chunks;
    for (const int admitted : {1, 2, whole / 2, whole, whole + problem.ranks, 2 * whole, 1 << 20})
        for (const bool falls : {false, true})
            for (const bool gradients_first : {true, false})
                for (const bool fills : {false, true})
                    if (std::optional<Order> order =
                            list_order(graph, {admitted, falls, gradients_first, fills}))
                        add("list scheduling", std::move(*order));
    add("one after the other", Order(problem.ranks, serial_word(problem)));
    const auto by_objective = [](const Start& a, const Start& b) { return a.objective < b.objective; };
    std::stable_sort(starts.begin(), starts.end(), by_objective);
    constexpr double worth_a_search = 1.02;
    if (problem.memory_limit && !is_provable(problem) && !starts.empty() &&
        starts.front().objective > worth_a_search * bound) {
        const auto patterns = static_cast<std::int64_t>(budget.time_limit.value * cautious_pattern_rate /
                                                        (problem.ranks * problem.chunks));
        for (Order& order : periodic_orders(problem, evaluator, patterns, budget.seed))
            add("periodic order", std::move(order));
        std::stable_sort(starts.begin(), starts.end(), by_objective);
    }
    return starts;
}

// Simulated annealing over words: a letter moves within its rank's word, sometimes on neighbouring ranks at
// once.
class Annealer {
public:
    Annealer(const OrderProblem& problem, OrderEvaluator& evaluator, std::uint64_t seed, double target)
        : problem_(problem), evaluator_(evaluator), random_(seed), target_(target) {
        for (const sim::StageCost& stage : problem.stages)
            mean_duration_ += (stage.forward + stage.backward_input + stage.backward_weight).value /
                              (letters_of_stage * problem.ranks * problem.chunks);
    }

    // Improves `best` with `evaluations` trials that start at `from`; true when the target is reached.
    bool run(const Order& from, std::int64_t evaluations, double warmest, Order& best,
             double& best_objective) {
        Order current = from;
        double objective = evaluator_.evaluate(current), energy = energy_of(objective);
        if (objective < best_objective) keep(current, objective, best, best_objective);
        const double hot = warmest * mean_duration_, cold = coldest * mean_duration_;
        for (std::int64_t trial = 0; trial < evaluations && best_objective > target_; ++trial) {
            const double temperature =
                hot * std::pow(cold / hot, static_cast<double>(trial) / static_cast<double>(evaluations));
            if (!move(current)) continue;
            ++evaluations_;
            const double moved_objective = evaluator_.try_change(current, changes_),
                         moved_energy = energy_of(moved_objective);
            const bool is_accepted = moved_energy <= energy ||
                                     (std::isfinite(moved_energy) &&
                                      random_.uniform() < std::exp((energy - moved_energy) / temperature));
            if (!is_accepted) {
                undo(current);
                continue;
            }
            evaluator_.keep();
            objective = moved_objective;
            energy = moved_energy;
            if (objective < best_objective - same_objective * std::abs(best_objective))
                keep(current, objective, best, best_objective);
        }
        return best_objective <= target_;
    }

    std::int64_t evaluations() const { return evaluations_; }

private:
    static constexpr double coldest = 0.02;  // temperature at the end, in mean durations of an action
    // Energy of the mean over ranks beside that of the greatest rank. Chosen by hand: small, so that the
    // greatest rank decides.
    static constexpr double weight_of_mean = 0.05;

    // The greatest rank decides; the mean breaks ties towards orders in which the others have slack.
    double energy_of(double objective) const {
        return std::isfinite(objective) ? objective + weight_of_mean * evaluator_.mean() : infinite;
    }

    static void keep(const Order& order, double objective, Order& best, double& best_objective) {
        best = order;
        best_objective = objective;
    }

    struct Move {
        int rank = 0, from = 0, to = 0;
    };
    static void rotate(Word& word, int from, int to) {
        const auto begin = word.begin();
        if (from < to) std::rotate(begin + from, begin + from + 1, begin + to + 1);
        else std::rotate(begin + to, begin + from, begin + from + 1);
    }

    bool apply(Order& order, Move move) {
        Word& word = order[move.rank];
        const int step = move.from < move.to ? 1 : -1;
        bool changes = false;
        for (int i = move.from; i != move.to && !changes; i += step) changes = word[i] != word[i + step];
        if (!changes) return false;
        rotate(word, move.from, move.to);
        if (!evaluator_.is_allowed(word, move.rank)) {
            rotate(word, move.to, move.from);
            return false;
        }
        moves_.push_back(move);
        changes_.push_back({move.rank, std::min(move.from, move.to), std::max(move.from, move.to)});
        return true;
    }

    bool move(Order& order) {
        moves_.clear();
        changes_.clear();
        // One move in four goes anywhere, the others no further than four letters; one in four moves a letter
        // of the neighbouring rank too, at most two letters away from the same position.
        constexpr std::uint64_t one_in = 4, shift = 2;
        constexpr int near_by = 4;
        const int length = problem_.word_length();
        const int rank = static_cast<int>(random_.below(problem_.ranks));
        const int from = static_cast<int>(random_.below(length));
        const int reach = random_.below(one_in) == 0 ? length : near_by;
        const int distance = 1 + static_cast<int>(random_.below(reach));
        const int to = std::clamp(random_.below(2) == 0 ? from - distance : from + distance, 0, length - 1);
        if (from == to || !apply(order, {rank, from, to})) return false;
        // The same letter of the neighbour: a forward that runs ahead on one rank needs it on the one before.
        if (random_.below(one_in) == 0) {
            const int neighbour = rank + (random_.below(2) == 0 ? -1 : 1);
            if (neighbour >= 0 && neighbour < problem_.ranks) {
                const int near = std::clamp(
                              from + static_cast<int>(random_.below(2 * shift + 1)) - static_cast<int>(shift),
                              0, length - 1),
                          target = std::clamp(near + (to - from), 0, length - 1);
                if (near != target) apply(order, {neighbour, near, target});
            }
        }
        return true;
    }
    void undo(Order& order) {
        for (auto move = moves_.rbegin(); move != moves_.rend(); ++move)
            rotate(order[move->rank], move->to, move->from);
    }

    const OrderProblem& problem_;
    OrderEvaluator& evaluator_;
    core::Random random_;
    double target_, mean_duration_ = 0;
    std::vector<Move> moves_;
    std::vector<OrderEvaluator::Change> changes_;
    std::int64_t evaluations_ = 0;
};

}  // namespace

core::Seconds order_lower_bound(const OrderProblem& problem) {
    const int stages = problem.ranks * problem.chunks, m = problem.micro_batches;
    auto cost = [&](int s) -> const sim::StageCost& { return problem.stages[s]; };
    auto hop = [&](int s) {
        return problem.rank_of(s) == problem.rank_of(s + 1) ? 0.0 : problem.transfer.value;
    };  // from s to s + 1 and back
    // One micro-batch on an empty pipeline: when it arrives at each stage, forward and back.
    std::vector<double> forward_arrival(stages, 0), gradient_arrival(stages, 0);
    double time = 0;
    for (int s = 0; s < stages; ++s) {
        forward_arrival[s] = time;
        time += cost(s).forward.value + (s + 1 < stages ? hop(s) : 0);
    }
    for (int s = stages - 1; s >= 0; --s) {
        gradient_arrival[s] = time;
        time += cost(s).backward_input.value + (s > 0 ? hop(s - 1) : 0);
    }
    const bool is_span = problem.objective == OrderObjective::span;
    double bound = is_span ? 0 : time + cost(0).backward_weight.value;
    for (int rank = 0; rank < problem.ranks; ++rank) {
        const int first = problem.stage_of(rank, 0);
        int last = first;
        double work = 0, weights = 0;
        std::vector<double> forwards;
        double least_memory = std::numeric_limits<double>::infinity();
        for (int chunk = 0; chunk < problem.chunks; ++chunk) {
            const int s = problem.stage_of(rank, chunk);
            last = std::max(last, s);
            work += m * (cost(s).forward + cost(s).backward_input + cost(s).backward_weight).value;
            weights += m * cost(s).backward_weight.value;
            forwards.insert(forwards.end(), m, cost(s).forward.value);
            least_memory = std::min(least_memory, cost(s).memory_forward.value);
        }
        // Nothing but forwards fits before the rank's first gradient arrives, and only as many as memory
        // holds.
        std::size_t room = forwards.size();
        if (problem.memory_limit && least_memory > 0)
            room = static_cast<std::size_t>(
                std::min<double>(static_cast<double>(room),
                                 std::floor(problem.memory_limit->value / least_memory * (1 + rounding))));
        std::sort(forwards.begin(), forwards.end(), std::greater<>());
        double filled = 0;
        for (std::size_t i = 0; i < room; ++i) filled += forwards[i];
        const double head = forward_arrival[first];
        const double wait = std::max(0.0, gradient_arrival[last] - head - filled);
        const double residence = residence_bound(problem, rank);
        if (is_span) {
            bound = std::max({bound, work + wait, residence});
            continue;
        }
        bound = std::max(bound, head + residence);
        // After the rank's last gradient it goes back to stage 0. Weights may run meanwhile: only what
        // exceeds them is lost.
        double tail = first > 0 ? cost(0).backward_weight.value : 0;
        for (int s = first - 1; s >= 0; --s) tail += hop(s) + cost(s).backward_input.value;
        bound = std::max(bound, head + work + wait + std::max(0.0, tail - weights));
    }
    // The dependencies' longest paths, memory's among them, and each rank's actions between them one at a
    // time.
    const OrderGraph graph(problem);
    const std::vector<double> from_start = is_span ? std::vector<double>() : graph.longest_from(std::nullopt),
                              to_end = is_span ? std::vector<double>() : graph.longest_to_end(std::nullopt);
    for (int rank = 0; rank < problem.ranks; ++rank) {
        const int begin = graph.first_of(rank);
        const std::vector<double> heads = is_span ? graph.longest_from(begin) : from_start,
                                  tails = is_span ? graph.longest_to_end(rank) : to_end;
        std::vector<Job> jobs;
        for (int action = begin; action < begin + problem.word_length(); ++action) {
            const std::size_t i = action;
            jobs.push_back({std::max(0.0, heads[i]), graph.duration(action),
                            std::max(0.0, tails[i] - graph.duration(action))});
        }
        bound = std::max(bound, one_machine_bound(jobs));
    }
    return core::Seconds(bound);
}

namespace {

struct Incumbent {
    Order order;
    double objective = infinite, bound = 0;
    bool is_optimal() const { return objective <= bound * (1 + same_objective); }
};

// Until no shorter order exists or the nodes are used up.
void close_gap(const OrderProblem& problem, OrderEvaluator& evaluator, std::int64_t& nodes, Incumbent& best) {
    best.bound = propagated_bound(problem, best.bound, best.objective);
    // Objectives that differ do so by more than this, unless times have seven digits that matter.
    constexpr double step = 1e-7;
    while (nodes > 0 && best.objective * (1 - step) > best.bound) {
        OrderSearch search = find_order(problem, best.objective * (1 - step), nodes);
        nodes -= search.nodes;
        if (search.order) {
            best.order = std::move(*search.order);
            best.objective = evaluator.evaluate(best.order);
        }
        if (!search.is_complete && !search.order) return;
        if (search.is_complete) break;
    }
    best.bound = best.objective;
}

}  // namespace

std::optional<FoundSchedule> search_schedule(const OrderProblem& problem, const SearchBudget& budget) {
    const auto begin = std::chrono::steady_clock::now();
    OrderEvaluator evaluator(problem);
    const double bound = order_lower_bound(problem).value;
    std::vector<Start> starts = starts_of(problem, evaluator, bound, budget);
    if (starts.empty()) return std::nullopt;
    Incumbent best{starts.front().order, starts.front().objective, bound};
    const double actions = static_cast<double>(problem.ranks) * problem.word_length() *
                           (problem.objective == OrderObjective::span ? problem.ranks : 1);
    const bool proves = is_provable(problem);
    const auto evaluations = static_cast<std::int64_t>(budget.time_limit.value * cautious_rate / actions *
                                                       (proves ? annealing_share : plays_avoided));
    const double table = std::pow(problem.ranks * problem.word_length(), 2) * tables_per_node;
    std::int64_t nodes = proves ? static_cast<std::int64_t>((1 - annealing_share) * budget.time_limit.value *
                                                            cautious_table_rate / table)
                                : 0;
    const std::int64_t node_budget = nodes;
    // Long words have so many moves that a warm start only undoes what the heuristics found.
    const double warmth = proves ? 1 : 0.1;
    // First temperatures of the rounds, in turn, in mean durations of an action.
    constexpr double mild = 0.5, warm = 1.5;
    Annealer annealer(problem, evaluator, budget.seed, best.bound * (1 + same_objective));
    // Every third round begins with another of the starts instead of the best order.
    constexpr int rounds = 12, rounds_before_proof = 3, rounds_a_start = 3;
    constexpr double most_overrun = 10;  // times the limit, by the clock
    for (int round = 0; round < rounds && !best.is_optimal(); ++round) {
        const Order from = round % rounds_a_start == rounds_a_start - 1
                               ? starts[round / rounds_a_start % starts.size()].order
                               : best.order;
        annealer.run(from, evaluations / rounds, warmth * (round % 2 == 0 ? mild : warm), best.order,
                     best.objective);
        if (round + 1 == rounds_before_proof && proves && !best.is_optimal())
            close_gap(problem, evaluator, nodes, best);
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
        if (spent.count() > most_overrun * budget.time_limit.value) break;
    }
    FoundSchedule found;
    found.schedule = to_schedule(problem, best.order);
    found.releases = evaluator.releases(best.order, best.objective);
    found.objective = core::Seconds(best.objective);
    found.lower_bound = core::Seconds(std::min(best.bound, best.objective));
    found.is_proven_optimal = best.is_optimal();
    found.start = starts.front().name;
    found.start_objective = core::Seconds(starts.front().objective);
    found.evaluations = annealer.evaluations();
    found.nodes = node_budget - nodes;
    return found;
}

std::optional<FoundSchedule> search_placements(const OrderProblem& problem, const SearchBudget& budget) {
    if (problem.chunks != 2) return search_schedule(problem, budget);
    OrderProblem folded = problem;
    folded.placement = schedule::StagePlacement::v_shape;
    SearchBudget half = budget;
    half.time_limit = budget.time_limit / 2;
    std::optional<FoundSchedule> loop = search_schedule(problem, half), v = search_schedule(folded, half);
    if (!loop || !v) return loop ? std::move(loop) : std::move(v);
    const core::Seconds bound = std::min(loop->lower_bound, v->lower_bound);
    std::optional<FoundSchedule>& best = v->objective < loop->objective ? v : loop;
    best->evaluations = loop->evaluations + v->evaluations;
    best->nodes = loop->nodes + v->nodes;
    best->lower_bound = bound;
    best->is_proven_optimal = best->objective.value <= bound.value * (1 + same_objective);
    return std::move(best);
}

}  // namespace planner
