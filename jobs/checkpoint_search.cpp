#include "jobs/checkpoint_search.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "jobs/closed_form.h"
#include "jobs/job_distribution.h"

namespace jobs {

namespace {

// Runs of each candidate: the least of a flat curve needs no more.
constexpr std::int64_t runs_of_a_candidate = 400;

class Search {
public:
    Search(const JobModel& model, const SimulationRule& rule) : model_(model), rule_(rule) {
        rule_.runs = std::min(rule.runs, runs_of_a_candidate);
    }

    // Mean hours with a checkpoint every so many steps; nothing where runs do not finish or where the
    // storage does not keep up.
    std::optional<double> hours(std::int64_t every) {
        if (const auto known = known_.find(every); known != known_.end()) return known->second;
        std::optional<double> hours;
        model_.checkpointing->every = every;
        if (model_.checkpointing->beside <= model_.step * double(every)) {
            const JobDistribution distribution = simulate_job(model_, rule_);
            if (distribution.unfinished == 0) hours = distribution.hours.mean;
        }
        known_.emplace(every, hours);
        return hours;
    }

    std::optional<std::int64_t> best() const {
        std::optional<std::int64_t> best;
        for (const auto& [every, hours] : known_)
            if (hours && (!best || *hours < *known_.at(*best))) best = every;
        return best;
    }

private:
    JobModel model_;
    SimulationRule rule_;
    std::map<std::int64_t, std::optional<double>> known_;  // by steps between checkpoints
};

void try_ratios(Search& search, double middle, double ratio, int each_way, std::int64_t most) {
    for (int i = -each_way; i <= each_way; ++i)
        search.hours(std::clamp<std::int64_t>(std::llround(middle * std::pow(ratio, i)), 1, most));
}

}  // namespace

std::optional<BestInterval> find_best_interval(const JobModel& model, const SimulationRule& rule) {
    const std::optional<core::Seconds> mtbf = model.cluster_mtbf();
    if (!model.checkpointing || !mtbf) return std::nullopt;
    Search search(model, rule);
    BestInterval result;
    const core::Seconds blocking = model.checkpointing->blocking;
    const double first = std::max(1.0, young_interval(blocking, *mtbf) / model.step);
    const std::int64_t given = model.checkpointing->every;
    const std::optional<double> hours_given = search.hours(given);
    if (!hours_given) return std::nullopt;
    constexpr int coarse = 4, fine = 3;  // candidates to either side
    try_ratios(search, first, 2, coarse, model.steps);
    for (double ratio : {1.25, 1.06}) try_ratios(search, double(*search.best()), ratio, fine, model.steps);
    result.every = *search.best();
    result.interval = model.step * double(result.every);
    result.hours_mean = *search.hours(result.every);
    result.hours_mean_given = *hours_given;
    if (!model.failures || model.failures->law != Law::exponential || model.spot) return result;
    result.young = young_interval(blocking, *mtbf);
    result.daly = daly_interval(blocking, *mtbf);
    return result;
}

}  // namespace jobs
