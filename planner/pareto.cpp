#include "planner/pareto.h"

#include <algorithm>
#include <limits>

namespace planner {

namespace {

// Share by which sums of equal times differ.
constexpr double rounding = 1e-12;

// Is `a` no worse than `b` in any of the three, but for so much?
bool covers(const RankedPlan& a, const RankedPlan& b, double tolerance) {
    const double more = 1 + tolerance;
    return a.evaluation.step_time.value <= b.evaluation.step_time.value * more &&
           a.evaluation.peak_memory.value <= b.evaluation.peak_memory.value * more &&
           cost_of_step(a) <= cost_of_step(b) * more;
}

bool is_one_to_a_person(const RankedPlan& a, const RankedPlan& b, const std::vector<Target>& targets) {
    const cluster::Cluster &on_a = targets[a.candidate].cluster, &on_b = targets[b.candidate].cluster;
    return on_a.instance.name == on_b.instance.name && on_a.nodes == on_b.nodes &&
           a.plan.layout == b.plan.layout && a.plan.micro_batch == b.plan.micro_batch &&
           a.plan.recompute == b.plan.recompute;
}

}  // namespace

double cost_of_step(const RankedPlan& plan) {
    const double rate = plan.evaluation.rate.value;
    return rate > 0 ? rate * plan.evaluation.step_time.value : std::numeric_limits<double>::infinity();
}

void add_to_front(std::vector<RankedPlan>& front, const RankedPlan& plan) {
    for (const RankedPlan& other : front)
        if (covers(other, plan, rounding)) return;
    std::erase_if(front, [&](const RankedPlan& other) { return covers(plan, other, rounding); });
    front.push_back(plan);
}

std::vector<RankedPlan> told_apart(std::vector<RankedPlan> front, const std::vector<Target>& targets,
                                   double tolerance) {
    std::stable_sort(front.begin(), front.end(), [](const RankedPlan& a, const RankedPlan& b) {
        return a.evaluation.step_time < b.evaluation.step_time;
    });
    std::vector<RankedPlan> rows;
    for (RankedPlan& plan : front)
        if (std::none_of(rows.begin(), rows.end(), [&](const RankedPlan& row) {
                return is_one_to_a_person(row, plan, targets) || covers(row, plan, tolerance);
            }))
            rows.push_back(std::move(plan));
    return rows;
}

}  // namespace planner
