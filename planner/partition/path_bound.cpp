#include "planner/partition/path_bound.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/errors.h"

namespace planner {

PathBound::PathBound(std::vector<std::vector<Run>> runs, std::size_t units)
    : runs_(std::make_shared<const std::vector<std::vector<Run>>>(std::move(runs))),
      to_go_(runs_->size() + 1, std::vector<double>(units + 1, std::numeric_limits<double>::infinity())) {}

std::size_t PathBound::runs() const {
    std::size_t count = 0;
    for (const std::vector<Run>& of_stage : *runs_) count += of_stage.size();
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
    to_go_.back().back() = 0;
    for (std::size_t s = runs_->size(); s-- > 0;) {
        std::fill(to_go_[s].begin(), to_go_[s].end(), std::numeric_limits<double>::infinity());
        for (const Run& run : (*runs_)[s]) {
            double& least = to_go_[s][std::size_t(run.begin)];
            least = std::min(least, part(s, *run.passes) + to_go_[s + 1][std::size_t(run.end)]);
        }
    }
}

std::vector<std::int32_t> PathBound::first_units() const {
    std::vector<std::int32_t> first_units;
    std::int32_t begin = 0;
    for (std::size_t s = 0; s < runs_->size(); ++s) {
        first_units.push_back(begin);
        const Run* best = nullptr;
        double least = std::numeric_limits<double>::infinity();
        for (const Run& run : (*runs_)[s]) {
            if (run.begin != begin) continue;
            const double length = part(s, *run.passes) + to_go_[s + 1][std::size_t(run.end)];
            if (length < least) {
                least = length;
                best = &run;
            }
        }
        core::require(best != nullptr, "there is a division");
        begin = best->end;
    }
    return first_units;
}

}  // namespace planner
