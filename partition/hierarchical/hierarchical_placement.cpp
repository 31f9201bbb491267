// One table a level: the least value of "what lies between two cuts on m units", over the last stage's start
// and its units. Lower levels need every pair of cuts, the outermost only those from the start. Rows (pairs
// with one lower cut) are independent of each other: all cores fill them, in any order, to the same values.
//
// The placements on the prefixes of one order come first: of all other cuts only those matter that a better
// placement may have. A stage does at most the best value of work a worker, so the work before a cut lies in
// a window around every number of workers; and what crosses it must cost less.
#include "partition/hierarchical/hierarchical_placement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/parallel.h"
#include "partition/deadline.h"
#include "partition/hierarchical/data_flow_cuts.h"
#include "partition/hierarchical/hierarchical_check.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int nothing = -1;                            // the cut before the first node
constexpr std::size_t most_states_with_levels = 2500;  // a table of every pair of cuts a level
constexpr double margin = 1e-12;                       // of sums in another order

struct Choice {
    double value = infinity;
    int cut = nothing;  // where the last stage begins
    int units = 0;      // of the last stage; 0: none, everything is one stage
};

class Hierarchy {
public:
    // Only values below `limit` are of interest: others may come out infinite.
    Hierarchy(const HierarchicalProblem& problem, std::vector<DataFlowCut> cuts, double limit,
              const Deadline& deadline)
        : problem_(problem),
          cuts_(std::move(cuts)),
          count_(core::count_of(cuts_)),
          deadline_(deadline),
          words_((cuts_.size() + 63) / 64) {
        int workers = 1;
        for (const BandwidthLevel& level : problem.levels) {
            below_.push_back(workers);
            workers *= level.workers;
        }
        for (const int below : below_)
            limit_.push_back(limit * workers / (below * problem.levels[limit_.size()].workers) *
                             (1 + margin));
        drop_useless(workers, limit);
    }

    // Of the cuts given, those that matter.
    std::size_t size() const { return cuts_.size(); }
    bool is_out_of_time() const { return is_out_of_time_; }
    double value() {
        list_inner_cuts();
        const std::vector<Choice>& whole = outermost().back();
        return whole.empty() ? infinity : whole.back().value;
    }
    std::vector<HierarchicalStage> stages() {
        std::vector<HierarchicalStage> result;
        collect(problem_.levels.size() - 1, nothing, count_ - 1, 0, {}, result);
        return result;
    }

private:
    using Row = std::vector<std::vector<Choice>>;  // by upper cut, by units - 1

    // Keeps the cuts that a placement below the limit may have, each with the levels at which it may.
    void drop_useless(int workers, double limit) {
        std::vector<DataFlowCut> kept;
        const double compute = cuts_.back().compute;
        for (std::size_t c = 0; c < cuts_.size(); ++c) {
            std::uint32_t levels = 0;
            for (std::size_t l = 0; l < problem_.levels.size(); ++l) {
                const int here = problem_.levels[l].workers, units = workers / below_[l];
                if (here < 2 ||
                    2 * cuts_[c].output / (problem_.levels[l].bandwidth.value * (here - 1)) >= limit_[l])
                    continue;
                // Units of this level before the cut and after it.
                const double most = limit * below_[l] * (1 + margin);
                const double before = std::max(1.0, std::ceil(cuts_[c].compute / most)),
                             after = std::max(1.0, std::ceil((compute - cuts_[c].compute) / most));
                if (!std::isfinite(limit) || before + after <= units) levels |= 1u << l;
            }
            if (levels == 0 && c + 1 < cuts_.size()) continue;
            kept.push_back(std::move(cuts_[c]));
            levels_of_.push_back(levels);
        }
        cuts_ = std::move(kept);
        count_ = core::count_of(cuts_);
        words_ = (cuts_.size() + 63) / 64;
    }

    void list_inner_cuts() {
        lies_in_.assign(cuts_.size() * words_, 0);
        for (int j = 0; j < count_; ++j)
            for (int k = 0; k < j; ++k)
                if (cuts_[k].lies_in(cuts_[j])) lies_in_[j * words_ + k / 64] |= std::uint64_t{1} << (k % 64);
    }
    bool contains(int j, int k) const {
        return k == nothing || (k < j && (lies_in_[j * words_ + k / 64] >> (k % 64) & 1));
    }
    // May a stage of the level end at the cut, and another one begin?
    bool may_cut(std::size_t level, int cut) const { return levels_of_[cut] >> level & 1; }
    // May a stage of a level above?
    bool may_bound(std::size_t level, int cut) const {
        return cut == nothing || cut == count_ - 1 || levels_of_[cut] >> (level + 1);
    }
    double between(double DataFlowCut::* what, int lower, int upper) const {
        return cuts_[upper].*what - (lower == nothing ? 0 : cuts_[lower].*what);
    }
    // Micro-batches kept besides the current one do not depend on the place without a limit: one table serves
    // all.
    double seen_by(double later) const { return problem_.memory_limit ? later : 0; }

    double memory(int lower, int upper, double later) const {
        const double once = between(&DataFlowCut::activations, lower, upper) +
                            between(&DataFlowCut::parameters, lower, upper);
        return once * (1 + std::ceil(later - 1e-9));
    }
    // What lies between two cuts on one unit of a level; `later` = workers after it for each of its copies.
    double on_one_unit(std::size_t level, int lower, int upper, double later) {
        if (level > 0) return table(level - 1, later)[(lower + 1) * cuts_.size() + upper];
        if (problem_.memory_limit && memory(lower, upper, later) > problem_.memory_limit->value)
            return infinity;
        return between(&DataFlowCut::compute, lower, upper);
    }
    double on_units(std::size_t level, int lower, int upper, int units, double later, bool is_whole) {
        const double one = on_one_unit(level, lower, upper, later);
        double reduction = 4.0 * (units - 1) * between(&DataFlowCut::parameters, lower, upper) /
                           (problem_.levels[level].bandwidth.value * units);
        // The published optimizer spreads this reduction over the units below only when the level is not
        // divided into stages.
        if (is_whole && level > 0) reduction /= problem_.levels[level - 1].workers;
        return (one + reduction) / units;
    }

    Row row(std::size_t level, int lower, double later) {
        const BandwidthLevel& here = problem_.levels[level];
        const double bandwidth = here.bandwidth.value;
        const double workers = below_[level];
        const double limit = limit_[level];
        const bool is_outermost = level + 1 == problem_.levels.size();
        const auto fewest = [&](double compute) {
            return std::isfinite(limit)
                       ? static_cast<int>(std::clamp(std::ceil(compute / (limit * workers)), 1.0, 1e9))
                       : 1;
        };
        Row result(cuts_.size());
        for (int j = lower + 1; j < count_; ++j) {
            if ((j & 63) == 0 && deadline_.has_passed()) is_out_of_time_ = true;
            if (is_out_of_time_) break;
            if (between(&DataFlowCut::compute, lower, j) / (workers * here.workers) >= limit) break;
            if (!(may_cut(level, j) || may_bound(level, j)) || !contains(j, lower)) continue;
            std::vector<Choice>& best = result[j];
            best.resize(here.workers);
            auto later_than = [&](int units_so_far, int units) {
                return seen_by((later + (here.workers - units_so_far) * workers) / units);
            };
            // Units that the work up to here takes, and that what follows leaves.
            const int least = fewest(between(&DataFlowCut::compute, lower, j));
            const int most = is_outermost && j < count_ - 1
                                 ? here.workers - fewest(between(&DataFlowCut::compute, j, count_ - 1))
                                 : here.workers;
            for (int m = least; m <= most; ++m) {
                const double value = on_units(level, lower, j, m, later_than(m, m), true);
                if (value < limit) best[m - 1].value = value;
            }
            const double leaving = j < count_ - 1 ? 2 * cuts_[j].output / bandwidth : 0;
            for (int k = j - 1; k > lower; --k) {
                if (here.workers > 64 && deadline_.has_passed())
                    is_out_of_time_ = true;  // one cut alone may take long
                if (is_out_of_time_) break;
                double worst = 0;
                for (int m = least; m <= most; ++m)
                    worst = std::max(worst, std::min(limit, best[m - 1].value));
                // Cuts are sorted by compute: from here on the last stage alone is too heavy for any number
                // of units.
                if (between(&DataFlowCut::compute, k, j) / (workers * here.workers) >= worst) break;
                if (!may_cut(level, k) || !contains(j, k) || !contains(k, lower)) continue;
                const std::vector<Choice>& before = result[k];
                if (before.empty()) continue;
                const double moved = std::max(2 * cuts_[k].output / bandwidth, leaving);
                if (moved / here.workers >= worst) continue;
                const int fewest_here = fewest(between(&DataFlowCut::compute, k, j));
                for (int m = std::max(2, least); m <= most; ++m) {
                    Choice& to = best[m - 1];
                    for (int units = fewest_here; units < m; ++units) {
                        double value = std::max(before[m - units - 1].value, moved / units);
                        if (value >= to.value || value >= limit) continue;
                        value = std::max(value, on_units(level, k, j, units, later_than(m, units), false));
                        if (value < to.value && value < limit) to = {value, k, units};
                    }
                }
            }
        }
        return result;
    }

    // Values of every pair of cuts on all units of a level: rows by lower cut + 1.
    const std::vector<double>& table(std::size_t level, double later) {
        auto found = tables_.find({level, later});
        if (found == tables_.end())
            throw core::InternalError("broken promise: tables of lower levels are made before they are read");
        return found->second;
    }
    void make_tables(std::size_t level, double later) {
        if (tables_.count({level, later}) || is_out_of_time_) return;
        make_tables_below(level, later);
        std::vector<double> values((cuts_.size() + 1) * cuts_.size(), infinity);
        core::for_each_in_parallel(count_ - 1 - nothing, 0, [&](std::size_t item, int) {
            const int lower = nothing + static_cast<int>(item);
            if (is_out_of_time_ || !may_bound(level, lower)) return;
            const Row filled = row(level, lower, later);
            for (int j = lower + 1; j < count_; ++j)
                if (!filled[j].empty()) values[(lower + 1) * cuts_.size() + j] = filled[j].back().value;
        });
        tables_.emplace(std::pair(level, later), std::move(values));
    }
    void make_tables_below(std::size_t level, double later) {
        if (level == 0) return;
        const int here = problem_.levels[level].workers;
        for (int so_far = 1; so_far <= here; ++so_far)
            for (int units = 1; units <= so_far; ++units)
                make_tables(level - 1,
                            seen_by((later + (here - so_far) * static_cast<double>(below_[level])) / units));
    }
    const Row& outermost() {
        if (!has_outermost_) {
            has_outermost_ = true;
            make_tables_below(problem_.levels.size() - 1, 0);
            if (is_out_of_time_) outermost_.resize(cuts_.size());
            else outermost_ = row(problem_.levels.size() - 1, nothing, 0);
        }
        return outermost_;
    }

    void collect(std::size_t level, int lower, int upper, double later, std::vector<int> replicas_above,
                 std::vector<HierarchicalStage>& to) {
        const Row filled = level + 1 == problem_.levels.size() ? outermost() : row(level, lower, later);
        struct Part {
            int lower, upper, units;
            double later;
        };
        std::vector<Part> parts;
        for (int m = problem_.levels[level].workers, j = upper;;) {
            const Choice& choice = filled[j][m - 1];
            const int units = choice.units == 0 ? m : choice.units;
            const int from = choice.units == 0 ? lower : choice.cut;
            parts.push_back(
                {from, j, units,
                 (later + (problem_.levels[level].workers - m) * static_cast<double>(below_[level])) /
                     units});
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
            HierarchicalStage stage{.nodes = {},
                                    .replicas = std::move(replicas),
                                    .load = {},
                                    .memory = core::Bytes(memory(part.lower, part.upper, part.later))};
            for (std::size_t v = 0; v < problem_.nodes.size(); ++v)
                if (cuts_[part.upper].holds(v) && (part.lower == nothing || !cuts_[part.lower].holds(v)))
                    stage.nodes.push_back(v);
            stage.load =
                core::Seconds(on_units(0, part.lower, part.upper, part.units, seen_by(part.later), false));
            to.push_back(std::move(stage));
        }
    }

    const HierarchicalProblem& problem_;
    std::vector<DataFlowCut> cuts_;
    int count_;
    const Deadline deadline_;
    std::size_t words_;
    std::vector<std::uint64_t> lies_in_;  // of each cut, the cuts in it
    std::vector<std::uint32_t> levels_of_;
    std::vector<int> below_;     // workers in one unit of a level
    std::vector<double> limit_;  // of values of a level, without what is divided by above
    std::map<std::pair<std::size_t, double>, std::vector<double>> tables_;
    Row outermost_;
    bool has_outermost_ = false;
    std::atomic<bool> is_out_of_time_{false};
};

}  // namespace

HierarchicalResult place_hierarchical(const HierarchicalProblem& problem,
                                      const HierarchicalOptions& options) {
    core::require(!problem.levels.empty() && problem.levels.size() < 32,
                  "a hierarchy has a level, and few of them");
    const Deadline deadline(Clock::now(), options.time_limit, options.is_stopped);
    const bool has_levels = problem.levels.size() > 1;
    HierarchicalResult result;
    result.data_parallel = everything_replicated(problem);
    DataFlowCuts cuts = data_flow_cuts(problem, options.most_enumerated);
    result.states = cuts.cuts.size();
    const double relaxed = mean_compute(problem).value;
    // Without a limit of memory everything may be replicated; what is sought is that or better.
    double best = infinity, limit = !problem.memory_limit && result.data_parallel.value > 0
                                        ? result.data_parallel.value * (1 + 1e-9)
                                        : infinity;
    const Clock::time_point begin = Clock::now();
    const auto report = [&] {
        if (options.progress)
            options.progress({.objective = best,
                              .lower_bound = std::min(relaxed, best),
                              .seconds = std::chrono::duration<double>(Clock::now() - begin).count()});
    };
    report();
    const auto search = [&](std::vector<DataFlowCut> among, std::size_t most) {
        Hierarchy hierarchy(problem, std::move(among), limit, deadline);
        if (hierarchy.size() > most) return false;
        const double value = hierarchy.value();
        if (hierarchy.is_out_of_time()) return false;
        if (value < best) {
            best = limit = value;
            result.stages = hierarchy.stages();
            report();
        }
        return true;
    };
    const std::size_t most =
        has_levels ? std::min(options.most_states, most_states_with_levels) : options.most_states;
    bool is_exact = cuts.is_complete && cuts.cuts.size() <= options.few_states && search(cuts.cuts, most);
    if (!is_exact) {
        search(data_flow_cuts(problem, 0).cuts, std::numeric_limits<std::size_t>::max());
        is_exact = cuts.is_complete && (best <= 0 || search(std::move(cuts.cuts), most));
    }
    if (std::isinf(best)) {
        result.is_proven_infeasible = is_exact;
        const core::Bytes most_memory = problem.memory_limit.value_or(core::Bytes(infinity));
        int workers = 1;
        for (const BandwidthLevel& level : problem.levels) workers *= level.workers;
        result.reason = is_exact ? fmt::format(
                                       "no division into stages keeps weights and activations in flight "
                                       "within {} on each of {} workers",
                                       core::format(most_memory), workers)
                                 : fmt::format(
                                       "no placement was found within the time limit, and none is excluded "
                                       "either ({} cuts of the data flow{})",
                                       result.states, cuts.is_complete ? "" : ", of one order only");
        return result;
    }
    const HierarchicalResult judged = judge_hierarchical(problem, result.stages);
    core::require(judged.is_feasible && std::abs(judged.objective.value - best) <= 1e-9 * best,
                  "the stages found have the objective they were found for");
    result.stages =
        judged.stages;  // with the memory of what is in flight, which a search without a limit leaves aside
    result.is_feasible = true;
    result.is_proven_optimal = is_exact;
    result.objective = core::Seconds(best);
    result.lower_bound = is_exact ? result.objective : core::Seconds(std::min(relaxed, best));
    return result;
}

}  // namespace partition
