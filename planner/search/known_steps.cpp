#include "planner/search/known_steps.h"

#include <algorithm>

#include "planner/refinement.h"
#include "schedule/pipeline/registry.h"

namespace planner {

namespace {

// Are they the same but for the size of buckets? Most differ in their partition or schedule.
bool is_alike(const schedule::Plan& known, const schedule::Plan& plan) {
    if (known.partition != plan.partition || known.schedule != plan.schedule) return false;
    schedule::Plan other = plan;
    other.gradient_bucket = known.gradient_bucket;
    return other == known;
}

bool has_same_buckets(const schedule::Plan& known, const schedule::Plan& plan, StageCollection& stages) {
    if (known.gradient_bucket == plan.gradient_bucket || !takes_buckets(plan)) return true;
    const schedule::PipelineSchedule* const order = schedule::find_pipeline_schedule(plan.schedule);
    // Copies of a stage on several ranks fill buckets in another way.
    return order && !order->is_bidirectional && stages.has_same_buckets(plan, known.gradient_bucket);
}

}  // namespace

void KnownSteps::add(std::size_t target, const schedule::Plan& plan, const sim::Evaluation& evaluation,
                     bool breaks_down) {
    known_.push_back({target, plan, evaluation, breaks_down});
}

const sim::Evaluation* KnownSteps::find(std::size_t target, const schedule::Plan& plan, bool breaks_down,
                                        StageCollection& stages) const {
    const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& step) {
        return step.target == target && step.has_breakdown >= breaks_down && is_alike(step.plan, plan) &&
               has_same_buckets(step.plan, plan, stages);
    });
    return known == known_.end() ? nullptr : &known->evaluation;
}

}  // namespace planner
