// A lower bound of the steps of all contiguous partitions of a plan at once. A path through the order of
// passes is one of every partition: its passes only take longer or shorter. So the step is no less than any
// mean of the lengths of several paths, and that mean is a sum over stages, of which the least over all
// divisions of the units follows stage by stage. PartitionSpace finds paths whose mean comes close to the
// best partition's step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/bound/bounds.h"

namespace planner {

class PathBound {
public:
    // Units [begin, end) as a stage.
    struct Run {
        std::int32_t begin, end;
        const Bounds::StagePasses* passes;
    };
    // `runs`: of each stage those that come into question, by where they begin.
    PathBound(const std::vector<std::vector<Run>>& runs, std::size_t units);

    // The path has a share of the mean, what was there before the rest.
    void mix(const sim::ReplayOrder::CriticalPath& path, double share);
    // Of the mean: of every division no less than this; infinity where there is none.
    double least() const { return beside_ + to_go(0, 0); }
    // The division that is.
    std::vector<std::int32_t> first_units() const;
    // A stage's part of the mean, and what the stages from this one on have at least, beginning with the
    // unit.
    double part(std::size_t stage, const Bounds::StagePasses& passes) const;
    double to_go(std::size_t stage, std::size_t unit) const { return to_go_[stage * (units_ + 1) + unit]; }
    double beside() const { return beside_; }
    std::size_t runs() const;

private:
    // Runs that are alike have the same passes, and a mean is asked of them many times.
    struct StageRuns {
        struct End {
            std::uint32_t unit, passes;  // index into `passes`
        };
        std::vector<const Bounds::StagePasses*> passes;
        std::vector<std::uint32_t> first;  // by the unit they begin with, into `ends`; one more at the end
        std::vector<End> ends;
    };
    static StageRuns grouped(const std::vector<Run>& runs, std::size_t units);
    void tabulate();

    std::size_t units_;
    std::shared_ptr<const std::vector<StageRuns>> stages_;      // copies of this share them
    std::vector<sim::ReplayOrder::CriticalPath::Counts> mean_;  // by stage and part of a sequence
    double beside_ = 0;
    std::vector<double> to_go_;  // [stage][unit]
};

}  // namespace planner
