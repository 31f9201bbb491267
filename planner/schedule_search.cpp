#include "planner/schedule_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/diagnostics.h"
#include "core/random.h"
#include "schedule/pipeline/registry.h"

namespace planner {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
// Actions relaxed per second on the slowest machine we know (2.1 GHz server core: 1.5e8), halved.
constexpr double cautious_rate = 7e7;

schedule::PipelineShape shape_of(const OrderProblem& problem) {
    schedule::PipelineShape shape;
    shape.ranks = problem.ranks;
    shape.micro_batches = problem.micro_batches;
    shape.transfer = problem.transfer.value;
    for (const sim::StageCost& cost : problem.stages)
        shape.stage_costs.push_back({cost.forward.value, cost.backward_input.value, cost.backward_weight.value, cost.memory_forward.value,
                                     cost.memory_backward_input.value, cost.memory_backward_weight.value});
    double most = 0;
    for (const sim::StageCost& cost : problem.stages)
        most = std::max(most, std::max(0.0, cost.memory_forward.value) + std::max(0.0, cost.memory_backward_input.value) +
                                  std::max(0.0, cost.memory_backward_weight.value));
    shape.memory_limit = problem.memory_limit.value > 0 ? problem.memory_limit.value : std::max(1.0, most * problem.micro_batches);
    return shape;
}

struct Start {
    std::string name;
    Order order;
    double objective = infinite;
};

// What every published order gives here, and one micro-batch after the other, which fits where anything does.
std::vector<Start> starts_of(const OrderProblem& problem, OrderEvaluator& evaluator) {
    std::vector<Start> starts;
    auto add = [&](const std::string& name, Order order) {
        for (int rank = 0; rank < problem.ranks; ++rank)
            if (!evaluator.is_allowed(order[static_cast<std::size_t>(rank)], rank)) return;
        const double objective = evaluator.evaluate(order);
        if (std::isfinite(objective)) starts.push_back({name, std::move(order), objective});
    };
    const schedule::PipelineShape shape = shape_of(problem);
    for (const char* name : {"zb-1p", "zb-h1", "zb-h2", "1f1b", "simple"}) {
        const schedule::PipelineSchedule& entry = *schedule::find_pipeline_schedule(name);
        if (!violation_of(entry, shape)) add(name, to_order(entry.generate(shape)));
    }
    std::vector<std::uint8_t> serial;
    for (int k = 0; k < problem.micro_batches; ++k) serial.insert(serial.end(), {F, I, W});
    add("one after the other", Order(static_cast<std::size_t>(problem.ranks), serial));
    std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) { return a.objective < b.objective; });
    return starts;
}

// Simulated annealing over words: a letter moves within its rank's word, sometimes on neighbouring ranks at once.
class Annealer {
public:
    Annealer(const OrderProblem& problem, OrderEvaluator& evaluator, std::uint64_t seed, double target)
        : problem_(problem), evaluator_(evaluator), random_(seed), target_(target) {
        for (const sim::StageCost& stage : problem.stages)
            mean_duration_ += (stage.forward + stage.backward_input + stage.backward_weight).value / (3 * problem.ranks);
    }

    // Improves `best` with `evaluations` trials that start at `from`; true when the target is reached.
    bool run(const Order& from, std::int64_t evaluations, double warmest, Order& best, double& best_objective) {
        Order current = from;
        double objective = evaluator_.evaluate(current), energy = energy_of(objective);
        if (objective < best_objective) keep(current, objective, best, best_objective);
        const double hot = warmest * mean_duration_, cold = 0.02 * mean_duration_;
        for (std::int64_t trial = 0; trial < evaluations && best_objective > target_; ++trial) {
            const double temperature = hot * std::pow(cold / hot, static_cast<double>(trial) / static_cast<double>(evaluations));
            if (!move(current)) continue;
            ++evaluations_;
            const double moved_objective = evaluator_.evaluate(current), moved_energy = energy_of(moved_objective);
            const bool is_accepted =
                moved_energy <= energy || (std::isfinite(moved_energy) && random_.uniform() < std::exp((energy - moved_energy) / temperature));
            if (!is_accepted) {
                undo(current);
                continue;
            }
            objective = moved_objective;
            energy = moved_energy;
            if (objective < best_objective - 1e-12 * std::abs(best_objective)) keep(current, objective, best, best_objective);
        }
        return best_objective <= target_;
    }

    std::int64_t evaluations() const { return evaluations_; }

private:
    // The greatest rank decides; the mean breaks ties towards orders in which the others have slack.
    double energy_of(double objective) const { return std::isfinite(objective) ? objective + 0.05 * evaluator_.mean() : infinite; }

    static void keep(const Order& order, double objective, Order& best, double& best_objective) {
        best = order;
        best_objective = objective;
    }

    struct Move {
        int rank = 0, from = 0, to = 0;
    };
    static void rotate(std::vector<std::uint8_t>& word, int from, int to) {
        const auto begin = word.begin();
        if (from < to) std::rotate(begin + from, begin + from + 1, begin + to + 1);
        else std::rotate(begin + to, begin + from, begin + from + 1);
    }

    bool apply(Order& order, Move move) {
        std::vector<std::uint8_t>& word = order[static_cast<std::size_t>(move.rank)];
        const int step = move.from < move.to ? 1 : -1;
        bool changes = false;
        for (int i = move.from; i != move.to && !changes; i += step) changes = word[static_cast<std::size_t>(i)] != word[static_cast<std::size_t>(i + step)];
        if (!changes) return false;
        rotate(word, move.from, move.to);
        if (!evaluator_.is_allowed(word, move.rank)) {
            rotate(word, move.to, move.from);
            return false;
        }
        moves_.push_back(move);
        return true;
    }

    bool move(Order& order) {
        moves_.clear();
        const int length = 3 * problem_.micro_batches;
        const int rank = static_cast<int>(random_.below(static_cast<std::uint64_t>(problem_.ranks)));
        const int from = static_cast<int>(random_.below(static_cast<std::uint64_t>(length)));
        const int reach = random_.below(4) == 0 ? length : 4;
        const int distance = 1 + static_cast<int>(random_.below(static_cast<std::uint64_t>(reach)));
        const int to = std::clamp(random_.below(2) == 0 ? from - distance : from + distance, 0, length - 1);
        if (from == to || !apply(order, {rank, from, to})) return false;
        // The same letter of the neighbour: a forward that runs ahead on one rank needs it on the one before.
        if (random_.below(4) == 0) {
            const int neighbour = rank + (random_.below(2) == 0 ? -1 : 1);
            if (neighbour >= 0 && neighbour < problem_.ranks) {
                const int near = std::clamp(from + static_cast<int>(random_.below(5)) - 2, 0, length - 1),
                          target = std::clamp(near + (to - from), 0, length - 1);
                if (near != target) apply(order, {neighbour, near, target});
            }
        }
        return true;
    }
    void undo(Order& order) {
        for (auto move = moves_.rbegin(); move != moves_.rend(); ++move) rotate(order[static_cast<std::size_t>(move->rank)], move->to, move->from);
    }

    const OrderProblem& problem_;
    OrderEvaluator& evaluator_;
    core::Random random_;
    double target_, mean_duration_ = 0;
    std::vector<Move> moves_;
    std::int64_t evaluations_ = 0;
};

}  // namespace

core::Seconds order_lower_bound(const OrderProblem& problem) {
    const int p = problem.ranks, m = problem.micro_batches;
    const double c = problem.transfer.value;
    auto stage = [&](int s) -> const sim::StageCost& { return problem.stages[static_cast<std::size_t>(s)]; };
    double bound = 0, chain = 0;
    for (int s = 0; s < p; ++s) chain += stage(s).forward.value + stage(s).backward_input.value;
    chain += 2 * (p - 1) * c;
    if (problem.objective == OrderObjective::makespan) bound = chain + stage(0).backward_weight.value;
    double head = 0;  // before the rank's first forward can start
    for (int r = 0; r < p; ++r) {
        const sim::StageCost& own = stage(r);
        // From the end of the rank's first forward to the arrival of its first gradient, and after its last gradient the way back to rank 0.
        double round_trip = 0, tail = 0;
        for (int s = r + 1; s < p; ++s) round_trip += stage(s).forward.value + stage(s).backward_input.value;
        round_trip += 2 * (p - 1 - r) * c;
        for (int s = 0; s < r; ++s) tail += stage(s).backward_input.value + c;
        if (r > 0) tail += stage(0).backward_weight.value;
        // Nothing but forwards fits before the first gradient, and only as many as memory holds.
        double room = m;
        if (problem.memory_limit.value > 0 && own.memory_forward.value > 0)
            room = std::min<double>(m, std::floor(problem.memory_limit.value / own.memory_forward.value * (1 + 1e-9)));
        const double wait = std::max(0.0, round_trip - (room - 1) * own.forward.value);
        const double work = m * (own.forward + own.backward_input + own.backward_weight).value;
        if (problem.objective == OrderObjective::span) {
            bound = std::max(bound, work + wait);
        } else {
            // Weights may run after the last gradient while it returns: of the tail only what exceeds them is lost.
            const double after = std::max(0.0, tail - m * own.backward_weight.value);
            bound = std::max(bound, head + work + std::max(wait, 0.0));
            bound = std::max(bound, head + work + wait + after);
        }
        head += own.forward.value + c;
    }
    return core::Seconds(bound);
}

std::optional<FoundSchedule> search_schedule(const OrderProblem& problem, const SearchBudget& budget) {
    const auto begin = std::chrono::steady_clock::now();
    OrderEvaluator evaluator(problem);
    std::vector<Start> starts = starts_of(problem, evaluator);
    if (starts.empty()) return std::nullopt;
    const double bound = order_lower_bound(problem).value, target = bound * (1 + 1e-12);
    Order best = starts.front().order;
    double objective = starts.front().objective;
    const double actions = 3.0 * problem.ranks * problem.micro_batches * (problem.objective == OrderObjective::span ? problem.ranks : 1);
    const auto evaluations = static_cast<std::int64_t>(budget.time_limit.value * cautious_rate / actions);
    Annealer annealer(problem, evaluator, budget.seed, target);
    constexpr int rounds = 12;
    for (int round = 0; round < rounds && objective > target; ++round) {
        const Order from = round % 3 == 2 ? starts[static_cast<std::size_t>(round) / 3 % starts.size()].order : best;
        annealer.run(from, evaluations / rounds, round % 2 == 0 ? 0.5 : 1.5, best, objective);
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
        if (spent.count() > 10 * budget.time_limit.value) break;
    }
    FoundSchedule found;
    found.schedule = to_schedule(problem, best);
    found.releases = evaluator.releases(best, objective);
    found.objective = core::Seconds(objective);
    found.lower_bound = core::Seconds(std::min(bound, objective));
    found.is_proven_optimal = objective <= target;
    found.start = starts.front().name;
    found.start_objective = core::Seconds(starts.front().objective);
    found.evaluations = annealer.evaluations();
    return found;
}

}  // namespace planner
