// What simulations of a search have said: its passes come to the same plan by several ways.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/stage_collection.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace planner {

// Added to by the thread that searches alone, so that answers do not depend on threads.
class KnownSteps {
public:
    // `breaks_down`: the evaluation has a breakdown.
    void add(std::size_t target, const schedule::Plan& plan, const sim::Evaluation& evaluation,
             bool breaks_down);
    // Of the plan, or of one with buckets of another size that hold the same; with a breakdown, if asked for.
    // Null: unknown. `stages` are of the target.
    const sim::Evaluation* find(std::size_t target, const schedule::Plan& plan, bool breaks_down,
                                StageCollection& stages) const;

private:
    struct Known {
        std::size_t target;
        schedule::Plan plan;
        sim::Evaluation evaluation;
        bool has_breakdown;
    };
    std::vector<Known> known_;
};

}  // namespace planner
