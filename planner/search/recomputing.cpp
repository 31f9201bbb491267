// Plans beside the space, of those that are too large for the memory of devices, or of hosts to which they
// offload, with nothing run again: with parts of every layer that cost little, and with as few layers of each
// stage as fit. All layers are a plan of the space.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "planner/search/search_state.h"
#include "schedule/pass/recompute.h"

namespace planner {

std::vector<int> layers_before_units(const model::ModelGraph& graph) {
    std::vector<int> before = {0};
    for (const char can : schedule::recomputed_units(graph, schedule::Recompute::full))
        before.push_back(before.back() + can);
    return before;
}

bool Search::is_free_to_recompute(const Entry& entry) const {
    const schedule::Plan& plan = entry.plan;
    const bool is_beside = plan.recompute_layers > 0 && entry.is_beside_space();
    return request_.recomputes_some && times_plans() && request_.limits.recompute.empty() &&
           (is_beside || plan.recompute == schedule::Recompute::none) &&
           targets_[entry.target].base.recompute == schedule::Recompute::none;
}

// Where the memory of its device is what it is too large for.
bool Search::may_recompute_some(const Entry& entry) const {
    return is_free_to_recompute(entry) && entry.plan.offload == schedule::Offload::none;
}

// With so many layers of each stage run again, by the work of all stages: as one stage of the whole model
// that runs as many again as they do.
bool Search::may_be_best(const Entry& entry, int layers) const {
    schedule::Plan plan = entry.plan;
    const std::vector<model::OperatorRange>* const stages = stages_[entry.target]->stages(plan);
    core::require(stages != nullptr, "what is too large has stages");
    plan.recompute = schedule::Recompute::full;
    plan.recompute_layers = 0;
    for (const std::int32_t held : held_layers(*stages)) plan.recompute_layers += std::min(layers, held);
    GuardedBounds& guarded = *bounds_[entry.layout];
    work_.add(1, per_known_family);
    const std::lock_guard lock(guarded.guard);
    return value_of(entry.target, guarded.bounds.time_of_work(plan), core::Bytes(0)) < best_value();
}

// More than it has; 0 where nothing less than all layers is enough, or the best is faster. What is kept falls
// by about as much with every layer, so a straight line between what is kept now and where all run again
// tells how many to try: if they are too few, more are tried after that.
int Search::fewest_layers(const Entry& entry) const {
    if (!may_recompute_some(entry)) return 0;
    const core::Bytes available = targets_[entry.target].cluster.instance.device.memory;
    const core::Bytes peak = entry.memory.peak, excess = peak - available;
    const int own = entry.plan.recompute_layers;
    const int left = layers_before_.back() / entry.plan.stages() - own;  // of a stage, about
    const auto layers_for = [&](core::Bytes a_layer) {
        if (a_layer.value <= 0) return left;
        return int(std::clamp(std::floor(excess / a_layer), 1.0, std::max(double(left), 1.0)));
    };
    // As if what runs again kept nothing.
    const int optimistic = layers_for((peak - entry.memory.state) / std::max(left, 1));
    if (optimistic >= left || !may_be_best(entry, own + optimistic)) return 0;
    schedule::Plan full = entry.plan;
    full.recompute = schedule::Recompute::full;
    full.recompute_layers = 0;
    work_.add(1, per_bounded_plan);
    work_.add(full.stages(), per_bounded_stage);
    const std::optional<MemoryBound> least = bounds_[entry.layout]->bounds.memory(full);
    if (!least || least->peak > available) return 0;
    const int more = layers_for((peak - least->peak) / std::max(left, 1));
    return more < left && may_be_best(entry, own + more) ? own + more : 0;
}

// The plan with parts of every layer run again that take hardly any time: as many of them as what runs it
// takes, if that fits and may be the best. Nothing else needs less memory for as little time.
std::optional<schedule::Plan> Search::with_parts_again(const Entry& entry) const {
    using schedule::RecomputeModule;
    if (!may_recompute_some(entry) || entry.plan.recompute != schedule::Recompute::none) return std::nullopt;
    const Target& target = targets_[entry.target];
    schedule::Plan plan = entry.plan;
    plan.recompute = schedule::Recompute::selective;
    const auto is_taken = [&](std::initializer_list<RecomputeModule> modules) {
        plan.recompute_modules = {};
        for (const RecomputeModule module : modules)
            if (modules_.has(module)) plan.recompute_modules.add(module);
        return !plan.recompute_modules.empty() &&
               (!target.runnable || !target.runnable->may_take || target.runnable->may_take(plan));
    };
    // All there are; those that Megatron-LM knows.
    if (!is_taken({RecomputeModule::layernorm, RecomputeModule::activation, RecomputeModule::mla_up_proj,
                   RecomputeModule::moe_act}) &&
        !is_taken({RecomputeModule::layernorm, RecomputeModule::mla_up_proj, RecomputeModule::moe_act}) &&
        !is_taken({RecomputeModule::mla_up_proj, RecomputeModule::moe_act}) &&
        !is_taken({RecomputeModule::mla_up_proj}))
        return std::nullopt;
    work_.add(1, per_bounded_plan);
    work_.add(plan.stages(), per_bounded_stage);
    GuardedBounds& guarded = *bounds_[entry.layout];
    const std::optional<MemoryBound> memory = guarded.bounds.memory(plan);
    if (!memory || memory->peak > target.cluster.instance.device.memory) return std::nullopt;
    work_.add(1, per_family);
    const std::lock_guard lock(guarded.guard);
    if (value_of(entry.target, guarded.bounds.time_of_work(plan), core::Bytes(0)) >= best_value())
        return std::nullopt;
    return plan;
}

// The same of a plan that offloads more than hosts have room for: as if what runs again offloaded nothing.
int Search::fewest_layers_for_hosts(const Entry& entry, const sim::Evaluation& evaluation) const {
    const int own = entry.plan.recompute_layers;
    const int left = layers_before_.back() / entry.plan.stages() - own;
    if (!is_free_to_recompute(entry) || !evaluation.available_host_memory || left < 2) return 0;
    const core::Bytes excess = evaluation.host_memory - *evaluation.available_host_memory;
    const int more = std::max(1, int(std::ceil(excess / (evaluation.host_memory / left))));
    return more < left && may_be_best(entry, own + more) ? own + more : 0;
}

// Plans of one compute order that bounds say may be better than the best, least state first. They differ in
// how it is sharded: where all layers run again and one does not fit, none with more state does.
std::vector<std::vector<std::size_t>> Search::too_large_by_order() const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < entries_.size(); ++i)
        if (entries_[i].rejection == Rejection::activations) found.push_back(i);
    found.insert(found.end(), too_large_.begin(), too_large_.end());
    std::erase_if(found, [&](std::size_t i) {
        return entries_[i].bound >= best_value() || !may_recompute_some(entries_[i]);
    });
    std::vector<std::vector<std::size_t>> orders;
    const auto is_alike = [&](const Entry& a, const Entry& b) {
        return a.group == b.group && a.plan.order_key() == b.plan.order_key();
    };
    for (const std::size_t i : found) {
        if (orders.empty() || !is_alike(entries_[orders.back().back()], entries_[i])) orders.emplace_back();
        orders.back().push_back(i);
    }
    for (std::vector<std::size_t>& order : orders)
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return entries_[a].memory.state < entries_[b].memory.state;
        });
    return orders;
}

// They are no part of the space: what is left of them when time is up stays out of its account.
void Search::recompute_some(core::Diagnostics& diagnostics) {
    SearchAccount& account = result_.account;
    if (!account.recomputes_some) return;
    std::vector<std::vector<std::size_t>> orders;
    if (!is_late(share_of_waves)) orders = too_large_by_order();
    std::vector<std::vector<schedule::Plan>> with_parts(orders.size());  // of the first plans of each order
    const std::vector<char> is_done = work_on(orders.size(), [&](std::size_t o) {
        for (const std::size_t i : orders[o]) {
            std::optional<schedule::Plan> plan = with_parts_again(entries_[i]);
            if (!plan) break;
            with_parts[o].push_back(std::move(*plan));
        }
        for (const std::size_t i : orders[o])
            if ((entries_[i].fewest_layers = fewest_layers(entries_[i])) == 0) break;
    });
    for (std::size_t o = 0; o < orders.size(); ++o)
        for (std::size_t p = 0; p < with_parts[o].size(); ++p)
            add_recomputed(orders[o][p], std::move(with_parts[o][p]));
    recompute_by_stage(orders);
    for (const std::vector<std::size_t>& order : orders)
        for (const std::size_t i : order) recompute_where_needed(i);
    if (!is_late(share_of_waves))
        for (const std::size_t i : too_large_for_hosts_)
            if (entries_[i].bound < best_value()) recompute_where_needed(i);
    search_waves(diagnostics, share_of_waves);
    account.recomputes_some = !is_late(share_of_waves) && std::count(is_done.begin(), is_done.end(), 0) == 0;
    leave_beside_space();
}

// Of the space, they wait until the best plan is known; those beside it are tried with more layers at once.
void Search::note_too_large(std::size_t i, Rejection rejection, const sim::Evaluation& evaluation) {
    Entry& entry = entries_[i];
    if (entry.plan.recomputes_by_stage()) {
        if (rejection == Rejection::simulated_peak)
            if (std::optional<schedule::Plan> plan = with_more_layers(entry.plan, evaluation))
                if (value_of(entry.target, time_bound(*plan, entry.layout), core::Bytes(0)) < best_value())
                    add_recomputed(i, std::move(*plan));
        return;
    }
    const bool exceeds_hosts = rejection == Rejection::host_memory;
    if (!exceeds_hosts && rejection != Rejection::simulated_peak) return;
    if (exceeds_hosts && entry.plan.offload == schedule::Offload::none)
        return;  // it is the optimizer's state
    if (exceeds_hosts) entry.fewest_layers = fewest_layers_for_hosts(entry, evaluation);
    else if (entry.is_beside_space()) entry.fewest_layers = fewest_layers(entry);
    if (entry.is_beside_space()) recompute_where_needed(i);
    else (exceeds_hosts ? too_large_for_hosts_ : too_large_).push_back(i);
}

// The plan becomes an entry of its own. More that runs again only adds to its time.
void Search::recompute_where_needed(std::size_t i) {
    if (entries_[i].fewest_layers == 0) return;
    schedule::Plan plan = entries_[i].plan;
    plan.recompute = schedule::Recompute::full;
    plan.recompute_layers = entries_[i].fewest_layers;
    add_recomputed(i, std::move(plan));
}

void Search::add_recomputed(std::size_t i, schedule::Plan plan) {
    const Entry& whole = entries_[i];
    Entry some = whole.beside_space();
    some.plan = std::move(plan);
    some.time_bound = whole.time_bound;
    some.bound = value_of(some.target, some.time_bound, core::Bytes(0));
    some.rejection = constraint_violated(some.target, some.time_bound);
    if (!some.rejection) add(std::move(some));
}

}  // namespace planner
