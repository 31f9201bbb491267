// Plans beside the space, of those that are too large for memory with nothing run again: with as few layers
// of each stage as fit. All layers are a plan of the space.
#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/search/search_state.h"
#include "schedule/pass/recompute.h"

namespace planner {

int recomputable_units(const model::ModelGraph& graph) {
    std::vector<model::OperatorRange> units;
    for (const model::Unit& unit : graph.units) units.push_back(unit.operators);
    const std::vector<char> can = schedule::recomputed_units(graph, units, schedule::Recompute::full, 0);
    return int(std::count(can.begin(), can.end(), 1));
}

bool Search::may_recompute_some(const Entry& entry) const {
    const schedule::Plan& plan = entry.plan;
    const bool is_beside = plan.recompute_layers > 0 && entry.stands_for == 0;
    return request_.recomputes_some && times_plans() && request_.limits.recompute.empty() &&
           (is_beside || plan.recompute == schedule::Recompute::none) &&
           plan.offload == schedule::Offload::none &&
           targets_[entry.target].base.recompute == schedule::Recompute::none;
}

// More than it has; 0 where nothing less than all layers is enough. What is kept falls by about as much with
// every layer, so a straight line between what is kept now and where all run again tells how many to try: if
// they are too few, more are tried after that.
int Search::fewest_layers(const Entry& entry) const {
    if (!may_recompute_some(entry)) return 0;
    const core::Bytes available = targets_[entry.target].cluster.instance.device.memory;
    schedule::Plan full = entry.plan;
    full.recompute = schedule::Recompute::full;
    const int own = std::exchange(full.recompute_layers, 0);
    work_.add(1, per_bounded_plan);
    work_.add(full.stages(), per_bounded_stage);
    const std::optional<MemoryBound> least = bounds_[entry.layout]->bounds.memory(full);
    if (!least || least->peak > available) return 0;
    const int all = layers_ / full.stages();  // of a stage, about
    const core::Bytes a_layer = (entry.memory.peak - least->peak) / std::max(all - own, 1);
    if (a_layer.value <= 0) return 0;
    const double more = std::max(std::floor((entry.memory.peak - available) / a_layer), 1.0);
    return own + more < all ? own + int(more) : 0;
}

// Those that bounds say may be better than the best. They are no part of the space: what is left of them when
// time is up stays out of its account.
void Search::recompute_some(core::Diagnostics& diagnostics) {
    SearchAccount& account = result_.account;
    if (!account.recomputes_some) return;
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < entries_.size(); ++i)
        if (entries_[i].rejection == Rejection::activations && entries_[i].bound < best_value() &&
            may_recompute_some(entries_[i]))
            found.push_back(i);
    for (const std::size_t i : too_large_)
        if (entries_[i].bound < best_value() && may_recompute_some(entries_[i])) found.push_back(i);
    if (is_late(share_of_waves)) found.clear();
    const std::vector<char> is_done = work_on(found.size(), [&](std::size_t f) {
        entries_[found[f]].fewest_layers = fewest_layers(entries_[found[f]]);
    });
    for (const std::size_t i : found) recompute_where_needed(i);
    search_waves(diagnostics, share_of_waves);
    account.recomputes_some = !is_late(share_of_waves) && std::count(is_done.begin(), is_done.end(), 0) == 0;
    for (std::size_t i = 0; i < entries_.size(); ++i)
        if (entries_[i].stands_for == 0 && !entries_[i].rejection && !entries_[i].is_taken) leave_queue(i);
}

// The plan becomes an entry of its own. More that runs again only adds to its time.
void Search::recompute_where_needed(std::size_t i) {
    const Entry& whole = entries_[i];
    if (whole.fewest_layers == 0) return;
    Entry some;
    some.target = whole.target;
    some.layout = whole.layout;
    some.group = whole.group;
    some.plan = whole.plan;
    some.plan.recompute = schedule::Recompute::full;
    some.plan.recompute_layers = whole.fewest_layers;
    some.stands_for = 0;
    some.time_bound = whole.time_bound;
    some.bound = value_of(some.target, some.time_bound, core::Bytes(0));
    some.rejection = constraint_violated(some.target, some.time_bound);
    if (!some.rejection) add(std::move(some));
}

}  // namespace planner
