#include "planner/partition/path_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"

namespace planner {

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

PathBound::StageRuns PathBound::grouped(const std::vector<Run>& runs, std::size_t units) {
    StageRuns stage;
    stage.first.assign(units + 2, 0);
    stage.ends.reserve(runs.size());
    std::unordered_map<const Bounds::StagePasses*, std::uint32_t> known;
    for (const Run& run : runs) {
        const auto [index, is_new] = known.try_emplace(run.passes, core::count_of(stage.passes));
        if (is_new) stage.passes.push_back(run.passes);
        stage.ends.push_back({static_cast<std::uint32_t>(run.end), index->second});
        ++stage.first[std::size_t(run.begin) + 1];
    }
    core::require(std::is_sorted(runs.begin(), runs.end(),
                                 [](const Run& a, const Run& b) { return a.begin < b.begin; }),
                  "runs are by where they begin");
    std::partial_sum(stage.first.begin(), stage.first.end(), stage.first.begin());
    return stage;
}

PathBound::PathBound(const std::vector<std::vector<Run>>& runs, std::size_t units)
    : units_(units), to_go_((runs.size() + 1) * (units + 1), infinity) {
    std::vector<StageRuns> stages;
    for (const std::vector<Run>& of_stage : runs) stages.push_back(grouped(of_stage, units));
    stages_ = std::make_shared<const std::vector<StageRuns>>(std::move(stages));
    to_go_.back() = 0;
}

std::size_t PathBound::runs() const {
    std::size_t count = 0;
    for (const StageRuns& stage : *stages_) count += stage.ends.size();
    return count;
}

void PathBound::mix(const sim::ReplayOrder::CriticalPath& path, double share) {
    mean_.resize(path.passes.size());
    for (std::size_t i = 0; i < mean_.size(); ++i) {
        const auto mix_in = [&](double& mean, double count) { mean += share * (count - mean); };
        mix_in(mean_[i].forward, path.passes[i].forward);
        mix_in(mean_[i].backward_input, path.passes[i].backward_input);
        mix_in(mean_[i].backward_weight, path.passes[i].backward_weight);
    }
    beside_ += share * (path.beside.value - beside_);
    tabulate();
}

double PathBound::part(std::size_t stage, const Bounds::StagePasses& passes) const {
    double part = 0;
    const std::size_t parts = passes.replayed.size();
    for (std::size_t i = 0; i < parts; ++i) {
        const sim::ReplayOrder::CriticalPath::Counts& counts = mean_[stage * parts + i];
        const sim::StageCost& cost = passes.replayed[i];
        part += counts.forward * cost.forward.value + counts.backward_input * cost.backward_input.value +
                counts.backward_weight * cost.backward_weight.value;
    }
    return part;
}

void PathBound::tabulate() {
    std::vector<double> parts;  // of the stage's passes
    for (std::size_t s = stages_->size(); s-- > 0;) {
        const StageRuns& stage = (*stages_)[s];
        parts.clear();
        for (const Bounds::StagePasses* passes : stage.passes) parts.push_back(part(s, *passes));
        double* const from = to_go_.data() + s * (units_ + 1);
        const double* const behind = from + units_ + 1;
        for (std::size_t unit = 0; unit <= units_; ++unit) {
            double least = infinity;
            for (std::uint32_t i = stage.first[unit]; i < stage.first[unit + 1]; ++i)
                least = std::min(least, parts[stage.ends[i].passes] + behind[stage.ends[i].unit]);
            from[unit] = least;
        }
    }
}

std::vector<std::int32_t> PathBound::first_units() const {
    std::vector<std::int32_t> first_units;
    std::uint32_t begin = 0;
    for (std::size_t s = 0; s < stages_->size(); ++s) {
        const StageRuns& stage = (*stages_)[s];
        first_units.push_back(static_cast<std::int32_t>(begin));
        const StageRuns::End* best = nullptr;
        double least = infinity;
        for (std::uint32_t i = stage.first[begin]; i < stage.first[begin + 1]; ++i) {
            const StageRuns::End& end = stage.ends[i];
            const double length = part(s, *stage.passes[end.passes]) + to_go(s + 1, end.unit);
            if (length < least) {
                least = length;
                best = &end;
            }
        }
        core::require(best != nullptr, "there is a division");
        begin = best->unit;
    }
    return first_units;
}

}  // namespace planner
