#include "planner/near_ties.h"

#include <algorithm>

#include "planner/search.h"

namespace planner {

int moving_parts(const schedule::Plan& plan) {
    const schedule::ParallelLayout& layout = plan.layout;
    int parts = 0;
    for (const bool is_used :
         {layout.tensor > 1, layout.pipeline > 1, layout.context > 1, layout.expert_ranks() > 1,
          plan.virtual_stages > 1, plan.passes_per_micro_batch() > 1,
          plan.sharding != schedule::Sharding::none, plan.recompute != schedule::Recompute::none,
          plan.offload != schedule::Offload::none, plan.updates_on_hosts()})
        if (is_used) ++parts;
    return parts;
}

double memory_share(const RankedPlan& plan) {
    const double available = plan.evaluation.available_memory.value;
    return available > 0 ? plan.evaluation.peak_memory.value / available : 0;
}

void NearTies::keep(Front& front, const RankedPlan& plan, double figure) {
    const auto covers = [](double value, double of, double other_value, double of_other) {
        return value <= other_value && of <= of_other;
    };
    for (const auto& other : front)
        if (covers(other.plan->value, other.figure, plan.value, figure)) return;
    std::erase_if(front, [&](const Kept& other) {
        return covers(plan.value, figure, other.plan->value, other.figure);
    });
    front.push_back({std::make_shared<const RankedPlan>(plan), figure});
}

void NearTies::add(const RankedPlan& plan, int nodes) {
    keep(memory_, plan, memory_share(plan));
    keep(nodes_, plan, nodes);
    keep(parts_, plan, moving_parts(plan.plan));
}

const NearTies::Kept* NearTies::least(const Front& front, double value) {
    const Kept* found = nullptr;
    for (const Kept& kept : front)
        if (kept.plan->value <= value && (!found || kept.figure < found->figure)) found = &kept;
    return found;
}

std::vector<NearTie> NearTies::of(const RankedPlan& best, int nodes, double tolerance) const {
    const double most = best.value * (1 + tolerance);
    std::vector<NearTie> ties;
    const auto add = [&](const Front& front, double figure_of_best, const char* merit) {
        const Kept* found = least(front, most);
        if (!found || found->figure >= figure_of_best) return;
        const auto same = std::find_if(ties.begin(), ties.end(), [&](const NearTie& tie) {
            return tie.plan->candidate == found->plan->candidate && tie.plan->plan == found->plan->plan;
        });
        if (same != ties.end()) same->merits.emplace_back(merit);
        else ties.push_back({{merit}, found->plan.get()});
    };
    add(memory_, memory_share(best) - memory_step, "least memory");
    add(nodes_, nodes, "fewest nodes");
    add(parts_, moving_parts(best.plan), "simplest");
    return ties;
}

const RankedPlan* NearTies::within_memory(double share) const {
    const RankedPlan* found = nullptr;
    for (const Kept& kept : memory_)
        if (kept.figure <= share && (!found || kept.plan->value < found->value)) found = kept.plan.get();
    return found;
}

}  // namespace planner
