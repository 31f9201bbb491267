// One table a level: the least value of "what lies between two cuts on m units", over the last stage's start and its units. Lower levels need every pair of cuts,
// the outermost only those from the start. Rows (pairs with one lower cut) are independent of each other: all cores fill them, in any order, to the same values.
#include "planner/hierarchical_placement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "planner/data_flow_cuts.h"

namespace planner {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int nothing = -1;                          // the cut before the first node
constexpr std::size_t most_states_with_levels = 2500;  // a table of every pair of cuts a level

struct Choice {
    double value = infinity;
    int cut = nothing;  // where the last stage begins
    int units = 0;      // of the last stage; 0: none, everything is one stage
};

class Hierarchy {
public:
    Hierarchy(const HierarchicalProblem& problem, std::vector<DataFlowCut> cuts, Clock::time_point deadline)
        : problem_(problem), cuts_(std::move(cuts)), count_(static_cast<int>(cuts_.size())), deadline_(deadline) {
        lies_in_.resize(cuts_.size() * cuts_.size());
        for (int j = 0; j < count_; ++j)
            for (int k = 0; k < j; ++k) lies_in_[index(k, j)] = cuts_[static_cast<std::size_t>(k)].lies_in(cuts_[static_cast<std::size_t>(j)]);
        int workers = 1;
        for (const BandwidthLevel& level : problem.levels) {
            below_.push_back(workers);
            workers *= level.workers;
        }
    }

    bool is_out_of_time() const { return is_out_of_time_; }
    double value() { return outermost().back()[static_cast<std::size_t>(problem_.levels.back().workers - 1)].value; }
    std::vector<HierarchicalStage> stages() {
        std::vector<HierarchicalStage> result;
        collect(problem_.levels.size() - 1, nothing, count_ - 1, 0, {}, result);
        return result;
    }

private:
    using Row = std::vector<std::vector<Choice>>;  // by upper cut, by units - 1

    std::size_t index(int k, int j) const { return static_cast<std::size_t>(k) * cuts_.size() + static_cast<std::size_t>(j); }
    bool contains(int j, int k) const { return k == nothing || (k < j && lies_in_[index(k, j)]); }
    double between(double DataFlowCut::*what, int lower, int upper) const {
        return cuts_[static_cast<std::size_t>(upper)].*what - (lower == nothing ? 0 : cuts_[static_cast<std::size_t>(lower)].*what);
    }
    // Micro-batches kept besides the current one do not depend on the place without a limit: one table serves all.
    double seen_by(double later) const { return std::isinf(problem_.memory_limit.value) ? 0 : later; }

    double memory(int lower, int upper, double later) const {
        const double once = between(&DataFlowCut::activations, lower, upper) + between(&DataFlowCut::parameters, lower, upper);
        return once * (1 + std::ceil(later - 1e-9));
    }
    // What lies between two cuts on one unit of a level; `later` = workers after it for each of its copies.
    double on_one_unit(std::size_t level, int lower, int upper, double later) {
        if (level > 0) return table(level - 1, later)[static_cast<std::size_t>(lower + 1) * cuts_.size() + static_cast<std::size_t>(upper)];
        if (memory(lower, upper, later) > problem_.memory_limit.value) return infinity;
        return between(&DataFlowCut::compute, lower, upper);
    }
    double on_units(std::size_t level, int lower, int upper, int units, double later, bool is_whole) {
        const double one = on_one_unit(level, lower, upper, later);
        double reduction = 4.0 * (units - 1) * between(&DataFlowCut::parameters, lower, upper) / (problem_.levels[level].bandwidth.value * units);
        // The published optimizer spreads this reduction over the units below only when the level is not divided into stages.
        if (is_whole && level > 0) reduction /= problem_.levels[level - 1].workers;
        return (one + reduction) / units;
    }

    Row row(std::size_t level, int lower, double later) {
        const BandwidthLevel& here = problem_.levels[level];
        const double bandwidth = here.bandwidth.value;
        const double workers = below_[level];
        Row result(cuts_.size());
        for (int j = lower + 1; j < count_; ++j) {
            if (!contains(j, lower)) continue;
            std::vector<Choice>& best = result[static_cast<std::size_t>(j)];
            best.resize(static_cast<std::size_t>(here.workers));
            auto later_than = [&](int units_so_far, int units) { return seen_by((later + (here.workers - units_so_far) * workers) / units); };
            for (int m = 1; m <= here.workers; ++m) best[static_cast<std::size_t>(m - 1)].value = on_units(level, lower, j, m, later_than(m, m), true);
            const double leaving = j < count_ - 1 ? 2 * cuts_[static_cast<std::size_t>(j)].output / bandwidth : 0;
            for (int k = j - 1; k > lower; --k) {
                double worst = 0;
                for (const Choice& choice : best) worst = std::max(worst, choice.value);
                // Cuts are sorted by compute: from here on the last stage alone is too heavy for any number of units.
                if (between(&DataFlowCut::compute, k, j) / (workers * here.workers) >= worst) break;
                if (!contains(j, k) || !contains(k, lower)) continue;
                const std::vector<Choice>& before = result[static_cast<std::size_t>(k)];
                const double moved = std::max(2 * cuts_[static_cast<std::size_t>(k)].output / bandwidth, leaving);
                if (moved / here.workers >= worst) continue;
                for (int m = 2; m <= here.workers; ++m) {
                    Choice& to = best[static_cast<std::size_t>(m - 1)];
                    for (int units = 1; units < m; ++units) {
                        double value = std::max(before[static_cast<std::size_t>(m - units - 1)].value, moved / units);
                        if (value >= to.value) continue;
                        value = std::max(value, on_units(level, k, j, units, later_than(m, units), false));
                        if (value < to.value) to = {value, k, units};
                    }
                }
            }
        }
        return result;
    }

    // Values of every pair of cuts on all units of a level: rows by lower cut + 1.
    const std::vector<double>& table(std::size_t level, double later) {
        auto found = tables_.find({level, later});
        if (found == tables_.end()) throw core::InternalError("broken promise: tables of lower levels are made before they are read");
        return found->second;
    }
    void make_tables(std::size_t level, double later) {
        if (tables_.count({level, later}) || is_out_of_time_) return;
        make_tables_below(level, later);
        std::vector<double> values((cuts_.size() + 1) * cuts_.size(), infinity);
        std::atomic<int> next{nothing};
        auto work = [&] {
            for (int lower = next++; lower < count_ - 1 && !is_out_of_time_; lower = next++) {
                if (Clock::now() > deadline_) is_out_of_time_ = true;
                const Row filled = row(level, lower, later);
                for (int j = lower + 1; j < count_; ++j)
                    if (!filled[static_cast<std::size_t>(j)].empty())
                        values[static_cast<std::size_t>(lower + 1) * cuts_.size() + static_cast<std::size_t>(j)] = filled[static_cast<std::size_t>(j)].back().value;
            }
        };
        std::vector<std::thread> threads;
        for (unsigned t = 1; t < std::thread::hardware_concurrency(); ++t) threads.emplace_back(work);
        work();
        for (std::thread& thread : threads) thread.join();
        tables_.emplace(std::pair(level, later), std::move(values));
    }
    void make_tables_below(std::size_t level, double later) {
        if (level == 0) return;
        const int here = problem_.levels[level].workers;
        for (int so_far = 1; so_far <= here; ++so_far)
            for (int units = 1; units <= so_far; ++units) make_tables(level - 1, seen_by((later + (here - so_far) * static_cast<double>(below_[level])) / units));
    }
    const Row& outermost() {
        if (outermost_.empty()) {
            make_tables_below(problem_.levels.size() - 1, 0);
            outermost_ = row(problem_.levels.size() - 1, nothing, 0);
        }
        return outermost_;
    }

    void collect(std::size_t level, int lower, int upper, double later, std::vector<int> replicas_above, std::vector<HierarchicalStage>& to) {
        const Row filled = level + 1 == problem_.levels.size() ? outermost() : row(level, lower, later);
        struct Part {
            int lower, upper, units;
            double later;
        };
        std::vector<Part> parts;
        for (int m = problem_.levels[level].workers, j = upper;;) {
            const Choice& choice = filled[static_cast<std::size_t>(j)][static_cast<std::size_t>(m - 1)];
            const int units = choice.units == 0 ? m : choice.units;
            const int from = choice.units == 0 ? lower : choice.cut;
            parts.push_back({from, j, units, (later + (problem_.levels[level].workers - m) * static_cast<double>(below_[level])) / units});
            if (choice.units == 0) break;
            m -= units;
            j = from;
        }
        std::reverse(parts.begin(), parts.end());
        for (const Part& part : parts) {
            std::vector<int> replicas{part.units};
            replicas.insert(replicas.end(), replicas_above.begin(), replicas_above.end());
            if (level > 0) {
                collect(level - 1, part.lower, part.upper, seen_by(part.later), std::move(replicas), to);
                continue;
            }
            HierarchicalStage stage{.nodes = {}, .replicas = std::move(replicas), .load = {}, .memory = core::Bytes(memory(part.lower, part.upper, part.later))};
            for (int v = 0; v < static_cast<int>(problem_.nodes.size()); ++v)
                if (cuts_[static_cast<std::size_t>(part.upper)].holds(v) && (part.lower == nothing || !cuts_[static_cast<std::size_t>(part.lower)].holds(v)))
                    stage.nodes.push_back(v);
            stage.load = core::Seconds(on_units(0, part.lower, part.upper, part.units, seen_by(part.later), false));
            to.push_back(std::move(stage));
        }
    }

    const HierarchicalProblem& problem_;
    std::vector<DataFlowCut> cuts_;
    int count_;
    Clock::time_point deadline_;
    std::vector<char> lies_in_;
    std::vector<int> below_;  // workers in one unit of a level
    std::map<std::pair<std::size_t, double>, std::vector<double>> tables_;
    Row outermost_;
    std::atomic<bool> is_out_of_time_{false};
};

double everything_replicated(const HierarchicalProblem& problem) {
    double time = 0, parameters = 0;
    for (const HierarchicalProblem::Node& node : problem.nodes) {
        time += (node.forward + node.backward).value;
        parameters += node.parameters.value;
    }
    int below = 1;
    for (const BandwidthLevel& level : problem.levels) {
        time = (time + 4.0 * (level.workers - 1) * parameters / (level.bandwidth.value * level.workers) / below) / level.workers;
        below = level.workers;
    }
    return time;
}

}  // namespace

HierarchicalResult place_hierarchical(const HierarchicalProblem& problem, const HierarchicalOptions& options) {
    core::require(!problem.levels.empty(), "a hierarchy has a level");
    Clock::time_point deadline = Clock::time_point::max();
    if (options.time_limit.value < 1e8)
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit.value));
    const bool has_levels = problem.levels.size() > 1;
    DataFlowCuts cuts = data_flow_cuts(problem, has_levels ? std::min(options.most_states, most_states_with_levels) : options.most_states);
    HierarchicalResult result;
    result.states = cuts.cuts.size();
    result.data_parallel = core::Seconds(everything_replicated(problem));
    int workers = 1;
    for (const BandwidthLevel& level : problem.levels) workers *= level.workers;
    // A stage costs at least its compute over its workers, so the largest is at least the mean.
    const double relaxed = cuts.cuts.back().compute / workers;
    const bool is_complete = cuts.is_complete;
    Hierarchy hierarchy(problem, std::move(cuts.cuts), deadline);
    const double value = hierarchy.value();
    if (hierarchy.is_out_of_time()) {
        result.reason = fmt::format("the time limit passed before the tables of {} cuts were complete", result.states);
        return result;
    }
    if (std::isinf(value)) {
        result.is_proven_infeasible = is_complete;
        result.reason = fmt::format("no division into stages keeps weights and activations in flight within {} on each of {} workers",
                                    core::format(problem.memory_limit), workers);
        return result;
    }
    result.is_feasible = true;
    result.is_proven_optimal = is_complete;
    result.objective = core::Seconds(value);
    result.lower_bound = is_complete ? result.objective : core::Seconds(std::min(relaxed, value));
    result.stages = hierarchy.stages();
    return result;
}

}  // namespace planner
