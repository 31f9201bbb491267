// Stages are listed flat; what belongs to one unit of a level follows from the sums: the parts of a unit fill
// all workers of the level below.
#include "partition/hierarchical/hierarchical_check.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "partition/graph_hash.h"
#include "partition/hierarchical/data_flow_cuts.h"

namespace partition {

namespace {

// Consecutive stages on some units of a level.
struct Part {
    std::size_t first = 0, last = 0;  // stages
    int units = 0;
    std::vector<Part> inner;  // of the level below
};

class Judge {
public:
    Judge(const HierarchicalProblem& problem, std::vector<HierarchicalStage>& stages)
        : problem_(problem), stages_(stages) {
        int workers = 1;
        for (const BandwidthLevel& level : problem.levels) {
            below_.push_back(workers);
            workers *= level.workers;
        }
    }

    // Empty, or why the stages are no placement.
    std::string infeasibility() {
        const std::size_t n = problem_.nodes.size(), levels = problem_.levels.size();
        std::vector<std::optional<std::size_t>> stage_of(n);
        for (std::size_t s = 0; s < stages_.size(); ++s) {
            if (stages_[s].nodes.empty()) return fmt::format("stage {} holds no node", s);
            if (stages_[s].replicas.size() != levels)
                return fmt::format("stage {} has replicas for {} levels, the workers have {}", s,
                                   stages_[s].replicas.size(), levels);
            for (std::size_t v : stages_[s].nodes) stage_of[v] = s;
        }
        for (std::size_t v = 0; v < n; ++v)
            if (!stage_of[v])
                return fmt::format("node {} is in no stage", core::in_quotes(problem_.nodes[v].id));
        for (auto [from, to] : problem_.edges)
            if (stage_of[from] > stage_of[to])
                return fmt::format("node {} of stage {} feeds node {} of the earlier stage {}",
                                   core::in_quotes(problem_.nodes[from].id), *stage_of[from],
                                   core::in_quotes(problem_.nodes[to].id), *stage_of[to]);
        std::vector<Part> parts;
        for (std::size_t s = 0; s < stages_.size(); ++s) parts.push_back({s, s, stages_[s].replicas[0], {}});
        for (std::size_t level = 0; level < levels; ++level) {
            std::vector<Part> units;
            for (std::size_t p = 0; p < parts.size();) {
                Part unit{.first = parts[p].first,
                          .last = parts[p].last,
                          .units = level + 1 < levels ? stages_[parts[p].first].replicas[level + 1] : 1,
                          .inner = {}};
                for (int filled = 0; filled < problem_.levels[level].workers; ++p) {
                    if (p == parts.size() || parts[p].units < 1 ||
                        filled + parts[p].units > problem_.levels[level].workers)
                        return fmt::format(
                            "the replicas of level {} from stage {} on do not add up to its {} workers",
                            level, unit.first, problem_.levels[level].workers);
                    for (std::size_t above = level + 1; above < levels; ++above)
                        if (stages_[parts[p].first].replicas[above] != stages_[unit.first].replicas[above])
                            return fmt::format(
                                "stages {} and {} share a unit of level {}, but not the number of its "
                                "replicas",
                                unit.first, parts[p].first, level);
                    filled += parts[p].units;
                    unit.last = parts[p].last;
                    unit.inner.push_back(std::move(parts[p]));
                }
                units.push_back(std::move(unit));
            }
            parts = std::move(units);
        }
        if (parts.size() != 1) return fmt::format("the stages fill all workers {} times", parts.size());
        whole_ = std::move(parts.front());
        std::vector<char> before(n, 0);
        for (const HierarchicalStage& stage : stages_) {
            for (std::size_t v : stage.nodes) before[v] = 1;
            cuts_.push_back(data_flow_cut(problem_, before));
        }
        return {};
    }

    // Largest of the parts of a unit of `level`, `later` workers after it for each of its copies; writes
    // loads and memory of the stages in it.
    double value(std::size_t level, const Part& unit, double later) {
        const double bandwidth = problem_.levels[level].bandwidth.value;
        double worst = 0;
        int so_far = 0;
        for (std::size_t p = 0; p < unit.inner.size(); ++p) {
            const Part& part = unit.inner[p];
            so_far += part.units;
            const double after =
                (later + (problem_.levels[level].workers - so_far) * static_cast<double>(below_[level])) /
                part.units;
            const double parameters = between(&DataFlowCut::parameters, part);
            const double one =
                level > 0 ? value(level - 1, part, after) : between(&DataFlowCut::compute, part);
            double reduction = 4.0 * (part.units - 1) * parameters / (bandwidth * part.units);
            const double load = (one + reduction) / part.units;
            if (level == 0) {
                HierarchicalStage& stage = stages_[part.first];
                stage.load = core::Seconds(load);
                stage.memory = core::Bytes((between(&DataFlowCut::activations, part) + parameters) *
                                           (1 + std::ceil(after - 1e-9)));
            }
            // As the published optimizer: the first part of a level spreads this reduction over the units
            // below, and pays for no transfer.
            if (p == 0) {
                if (level > 0) reduction /= problem_.levels[level - 1].workers;
                worst = std::max(worst, (one + reduction) / part.units);
                continue;
            }
            const double entering = cuts_[part.first - 1].output,
                         leaving = part.last + 1 < stages_.size() ? cuts_[part.last].output : 0;
            worst = std::max({worst, load, 2 * std::max(entering, leaving) / bandwidth / part.units});
        }
        return worst;
    }
    double value() { return value(problem_.levels.size() - 1, whole_, 0); }

private:
    double between(double DataFlowCut::* what, const Part& part) const {
        return cuts_[part.last].*what - (part.first == 0 ? 0 : cuts_[part.first - 1].*what);
    }

    const HierarchicalProblem& problem_;
    std::vector<HierarchicalStage>& stages_;
    std::vector<int> below_;         // workers in one unit of a level
    std::vector<DataFlowCut> cuts_;  // behind each stage
    Part whole_;
};

}  // namespace

core::Seconds everything_replicated(const HierarchicalProblem& problem) {
    double time = 0, parameters = 0;
    for (const HierarchicalProblem::Node& node : problem.nodes) {
        time += (node.forward + node.backward).value;
        parameters += node.parameters.value;
    }
    int below = 1;
    for (const BandwidthLevel& level : problem.levels) {
        time = (time +
                4.0 * (level.workers - 1) * parameters / (level.bandwidth.value * level.workers) / below) /
               level.workers;
        below = level.workers;
    }
    return core::Seconds(time);
}

std::string hash_of(const HierarchicalProblem& problem) {
    GraphHash hash;
    for (const HierarchicalProblem::Node& node : problem.nodes) {
        hash.add_letters(node.id);
        for (double number :
             {node.forward.value, node.backward.value, node.activation.value, node.parameters.value})
            hash.add_number(number);
    }
    for (auto [from, to] : problem.edges) hash.add(from << 32 | to);
    return hash.text();
}

core::Seconds mean_compute(const HierarchicalProblem& problem) {
    core::Seconds compute;
    for (const HierarchicalProblem::Node& node : problem.nodes) compute += node.forward + node.backward;
    for (const BandwidthLevel& level : problem.levels) compute /= level.workers;
    return compute;
}

HierarchicalResult judge_hierarchical(const HierarchicalProblem& problem,
                                      std::vector<HierarchicalStage> stages) {
    HierarchicalResult result;
    result.data_parallel = everything_replicated(problem);
    Judge judge(problem, stages);
    result.reason = judge.infeasibility();
    if (!result.reason.empty()) return result;
    result.objective = core::Seconds(judge.value());
    for (std::size_t s = 0; s < stages.size() && result.reason.empty(); ++s)
        if (problem.memory_limit && stages[s].memory > *problem.memory_limit)
            result.reason = fmt::format("stage {} of the partition needs {}, a worker has {}", s,
                                        core::format(stages[s].memory), core::format(*problem.memory_limit));
    result.is_feasible = result.reason.empty();
    result.lower_bound = std::min(result.objective, mean_compute(problem));
    result.stages = std::move(stages);
    return result;
}

}  // namespace partition
