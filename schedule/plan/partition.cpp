#include "schedule/plan/partition.h"

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/index/integers.h"
#include "schedule/pass/recompute.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/planned_graph.h"

namespace schedule {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Loads of all stages [begin, end); infinity for one that does not fit.
class StageLoads {
public:
    explicit StageLoads(const PartitionProblem& problem)
        : problem_(problem), units_(problem.load.size()), load_(units_ + 1), memory_(units_ + 1) {
        for (const core::Seconds again : problem.again) {
            if (again.value > 0) again_.push_back(again_.back() + again.value);
            before_.push_back(again_.size() - 1);
        }
        for (std::size_t i = 0; i < units_; ++i) {
            load_[i + 1] = load_[i] + problem.load[i].value;
            memory_[i + 1] = memory_[i] + (problem.memory.empty() ? 0 : problem.memory[i].value);
        }
    }
    std::size_t units() const { return units_; }
    double load(std::size_t stage, std::size_t begin, std::size_t end) const {
        if (problem_.memory_limit.value > 0 && memory_[end] - memory_[begin] > problem_.memory_limit.value)
            return infinity;
        double load = load_[end] - load_[begin];
        if (!problem_.again.empty()) {
            const std::size_t most = problem_.most_again[problem_.most_again.size() > 1 ? stage : 0];
            load += again_[std::min(before_[end], before_[begin] + most)] - again_[before_[begin]];
        }
        if (!problem_.boundary.empty())
            load += (begin > 0 ? problem_.boundary[begin - 1].value : 0) +
                    (end < units_ ? problem_.boundary[end - 1].value : 0);
        return load;
    }

private:
    const PartitionProblem& problem_;
    std::size_t units_;
    std::vector<double> load_, memory_;
    std::vector<double> again_ = {0};        // sums over the units with any
    std::vector<std::size_t> before_ = {0};  // how many of those are before each unit
};

// best[s][j]: over all divisions of the first j units into s stages, the least value of `combine` over
// their loads; choice[s][j]: where the last stage begins.
template <class Combine, class Cost>
std::pair<double, std::vector<std::int32_t>> divide(std::size_t units, std::size_t stages, Combine combine,
                                                    Cost cost) {
    std::vector<std::vector<double>> best(stages + 1, std::vector<double>(units + 1, infinity));
    std::vector<std::vector<std::size_t>> choice(stages + 1, std::vector<std::size_t>(units + 1, 0));
    best[0][0] = 0;
    for (std::size_t s = 1; s <= stages; ++s)
        for (std::size_t j = s; j + (stages - s) <= units; ++j)
            for (std::size_t i = s - 1; i < j; ++i) {
                if (best[s - 1][i] == infinity) continue;
                const double value = combine(best[s - 1][i], cost(s - 1, i, j));
                if (value < best[s][j]) {
                    best[s][j] = value;
                    choice[s][j] = i;
                }
            }
    std::vector<std::int32_t> first(stages);
    if (best[stages][units] == infinity) return {infinity, {}};
    for (std::size_t s = stages, j = units; s > 0; --s) {
        j = choice[s][j];
        first[s - 1] = static_cast<std::int32_t>(j);
    }
    return {best[stages][units], first};
}

// SMP v1's cost of a module: memory_weight x its share of all memory (parameters and activations) + (1 -
// memory_weight) x its share of all compute.
void weigh_memory(const Plan& plan, const model::ModelGraph& graph, std::vector<core::Seconds>& load) {
    std::vector<double> memory;
    double all_memory = 0, all_load = 0;
    Plan alone = plan;
    alone.recompute_layers_by_stage = {};
    for (const model::Unit& unit : graph.units) {
        const StateFootprint state = state_footprint(graph, unit.operators, plan);
        memory.push_back((state.parameters + activation_footprint(graph, unit.operators, alone).saved).value);
        all_memory += memory.back();
    }
    for (core::Seconds one : load) all_load += one.value;
    for (std::size_t u = 0; u < load.size(); ++u)
        load[u] = core::Seconds((all_memory > 0 ? plan.memory_weight * memory[u] / all_memory : 0) +
                                (all_load > 0 ? (1 - plan.memory_weight) * load[u].value / all_load : 0));
}

// Two sweeps of the classical recurrence best(s, j) = min over i of max(best(s-1, i), load(i, j)): the first
// finds the least possible maximum; many divisions reach it, so the second takes, among those, the one with
// the least sum of squares, which evens out the other stages too. Both are exact.
template <class Load>
std::pair<double, std::optional<Partition>> least_largest(std::size_t units, std::size_t stages,
                                                          const Load& load) {
    const double largest =
        divide(units, stages, [](double a, double b) { return std::max(a, b); }, load).first;
    if (largest == infinity) return {infinity, std::nullopt};
    const auto square_within = [&](std::size_t s, std::size_t i, std::size_t j) {
        const double value = load(s, i, j);
        return value <= largest ? value * value : infinity;
    };
    auto [ignored, first] = divide(units, stages, [](double a, double b) { return a + b; }, square_within);
    return {largest, Partition{std::move(first)}};
}

}  // namespace

std::optional<PartitionSolution> partition_contiguous(const PartitionProblem& problem) {
    const StageLoads loads(problem);
    const std::size_t stages = problem.stages;
    core::require(problem.stages > 0, "a partition has stages");
    core::require(problem.boundary.empty() || problem.boundary.size() + 1 == loads.units(),
                  "there is a boundary between each two units");
    core::require(problem.again.empty() || problem.again.size() == loads.units(),
                  "every unit has what it takes again");
    core::require(
        problem.again.empty() || problem.most_again.size() == 1 || problem.most_again.size() == stages,
        "every stage has how many of its units take it again");
    core::require(problem.memory.empty() || problem.memory.size() == loads.units(),
                  "every unit has its memory");
    if (loads.units() < stages) return std::nullopt;
    auto [largest, partition] =
        least_largest(loads.units(), stages,
                      [&](std::size_t s, std::size_t i, std::size_t j) { return loads.load(s, i, j); });
    if (!partition) return std::nullopt;
    return PartitionSolution{std::move(*partition), core::Seconds(largest)};
}

std::optional<Partition> partition_by_place(std::size_t units, std::size_t stages, const StageLoad& load) {
    core::require(stages > 0, "a partition has stages");
    if (units < stages) return std::nullopt;
    return least_largest(units, stages, load).second;
}

std::vector<core::Seconds> partition_loads(const Plan& plan, const model::ModelGraph& graph) {
    const model::CostContext context = plan.cost_context();
    const std::vector<core::Seconds> again = recomputed_loads(plan, graph);
    std::vector<core::Seconds> load;
    for (const std::int32_t u : core::indices(graph.units)) {
        const model::Unit& unit = graph.units[u];
        const core::Flops all =
            model::phase_cost(graph, unit.operators, model::Phase::forward, context).flops +
            model::phase_cost(graph, unit.operators, model::Phase::backward_input, context).flops +
            model::phase_cost(graph, unit.operators, model::Phase::backward_weight, context).flops;
        load.push_back(core::Seconds(all.value));  // on any one device time is proportional
        if (!plan.recomputes_some_layers()) load.back() += again[u];
    }
    if (plan.memory_weight > 0) weigh_memory(plan, graph, load);
    return load;
}

std::vector<core::Seconds> recomputed_loads(const Plan& plan, const model::ModelGraph& graph) {
    const std::vector<char> run_again = recomputed_units(graph, plan.recompute);
    std::vector<core::Seconds> load(run_again.size());
    for (const std::int32_t u : core::indices(run_again))
        if (run_again[u])
            load[u] = core::Seconds(
                model::phase_cost(graph, graph.units[u].operators, model::Phase::forward, plan.cost_context())
                    .flops.value);
    return load;
}

std::vector<std::size_t> most_again(const Plan& plan) {
    if (plan.recomputes_by_stage())
        return {plan.recompute_layers_by_stage.begin(), plan.recompute_layers_by_stage.end()};
    return {std::size_t(plan.recompute_layers)};
}

std::optional<Partition> complete_partition(const Plan& plan, const model::ModelGraph& model) {
    if (!plan.partition.first_units.empty()) return plan.partition;
    const PlannedGraph planned(plan, model);
    const model::ModelGraph& graph = *planned;
    PartitionProblem problem;
    problem.stages = plan.stages();
    problem.load = partition_loads(plan, graph);
    if (plan.recomputes_some_layers() && plan.memory_weight == 0) {
        problem.again = recomputed_loads(plan, graph);
        problem.most_again = most_again(plan);
    }
    std::optional<PartitionSolution> solution = partition_contiguous(problem);
    if (!solution) return std::nullopt;
    return std::move(solution->partition);
}

std::optional<Partition> partition_by_layers(const model::ModelGraph& graph, int stages) {
    std::vector<std::int32_t> layers;  // their units
    for (const std::int32_t u : core::indices(graph.units))
        if (graph.units[u].name.starts_with("layers.")) layers.push_back(u);
    const auto count = core::count_of(layers);
    if (stages < 1 || count < 1 || layers.back() - layers.front() + 1 != count) return std::nullopt;
    const bool ends_hold_less = count % stages != 0;
    if (ends_hold_less && (count + 2) % stages != 0) return std::nullopt;
    const int each = ends_hold_less ? (count + 2) / stages : count / stages;
    Partition partition;
    for (int s = 0; s < stages; ++s) {
        const int before = s * each - (ends_hold_less && s > 0 ? 1 : 0);
        // A last stage without layers holds the head alone.
        partition.first_units.push_back(s == 0 ? 0 : before < count ? layers[before] : layers.back() + 1);
    }
    return partition;
}

}  // namespace schedule
