#include "planner/refinement.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "core/units.h"
#include "planner/search_space.h"
#include "planner/stage_collection.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"

namespace planner {

namespace {

using schedule::Plan;
using schedule::Sharding;

constexpr double buckets_in_mebibytes[] = {1, 2, 5, 10, 25, 50, 100, 200, 500, 1000};
constexpr std::ptrdiff_t next_buckets = 2;  // each way

// What lies on hosts is divided over all replicas (schedule::check_plan).
bool may_shard_otherwise(const Plan& plan) {
    return plan.layout.data > 1 && !plan.keeps_parameters_on_hosts();
}

void add_shard_degrees(const Plan& plan, std::vector<Plan>& plans) {
    const int replicas = plan.layout.data, own = plan.effective_shard_degree();
    if (!plan.shards(Sharding::optimizer) || !may_shard_otherwise(plan)) return;
    for (int degree = 2; degree <= replicas; ++degree) {
        if (replicas % degree != 0 || degree == own || !nests_with_experts(plan.layout, degree)) continue;
        plans.push_back(plan);
        plans.back().shard_degree = degree == replicas ? 0 : degree;
    }
}

void add_group_sizes(const Plan& plan, std::vector<Plan>& plans) {
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    if (!order || !std::holds_alternative<schedule::GroupParameters>(order->parameters) ||
        plan.virtual_stages == 1)
        return;
    const int ranks = plan.layout.pipeline, own = plan.parameters<schedule::GroupParameters>().size(ranks);
    int smaller = 0, larger = 0;
    for (int size = (ranks + 1) / 2; size < 2 * plan.micro_batches; size *= 2) {
        const int group = std::min(size, plan.micro_batches);
        if (group < own) smaller = group;
        if (group > own && larger == 0) larger = group;
    }
    for (const int group : {smaller, larger}) {
        Plan other = plan;
        other.schedule_parameters = schedule::GroupParameters{group};
        if (group > 0 && !schedule::unsupported(*order, schedule::shape_of(other)))
            plans.push_back(std::move(other));
    }
}

void add_buckets(const Plan& plan, std::vector<Plan>& plans) {
    if (!takes_buckets(plan)) return;
    const double own = plan.gradient_bucket / core::mebibytes(1);
    const auto add = [&](double size) {
        plans.push_back(plan);
        plans.back().gradient_bucket = core::mebibytes(size);
    };
    const auto begin = std::begin(buckets_in_mebibytes), end = std::end(buckets_in_mebibytes);
    const auto smaller = std::lower_bound(begin, end, own), larger = std::upper_bound(smaller, end, own);
    for (std::ptrdiff_t next = 0; next < next_buckets; ++next) {
        if (smaller - begin > next) add(*(smaller - 1 - next));
        if (end - larger > next) add(larger[next]);
    }
}

// As many layers of every stage as the most, the mean and the least of any.
void add_layers_of_all(const Plan& plan, std::vector<Plan>& plans) {
    const std::vector<std::int32_t>& own = plan.recompute_layers_by_stage;
    const auto [least, most] = std::minmax_element(own.begin(), own.end());
    const int mean = std::accumulate(own.begin(), own.end(), 0) / int(own.size());
    for (const int layers : std::set<int>{*least, mean, *most}) {
        if (layers == 0) continue;
        plans.push_back(plan);
        plans.back().recompute_layers = layers;
        plans.back().recompute_layers_by_stage = {};
    }
}

// How many of each stage is found out with its cuts: any number stands for it.
void add_layers_by_stage(const Plan& plan, std::vector<Plan>& plans) {
    const bool lacks_memory =
        plan.recompute == schedule::Recompute::full || plan.offload != schedule::Offload::none;
    if (!lacks_memory || plan.layout.pipeline == 1 || plan.passes_per_micro_batch() > 1) return;
    plans.push_back(with_nothing_again(plan));
    plans.back().recompute = schedule::Recompute::full;
    plans.back().recompute_layers_by_stage.assign(std::size_t(plan.stages()), 1);
}

void add_layers(const Plan& plan, std::vector<Plan>& plans) {
    if (plan.recomputes_by_stage()) return add_layers_of_all(plan, plans);
    add_layers_by_stage(plan, plans);
    if (plan.recompute_layers == 0) return;
    for (const int layers : {plan.recompute_layers - 1, plan.recompute_layers + 1}) {
        plans.push_back(layers > 0 ? plan : with_nothing_again(plan));  // once cuts have moved it may fit
        plans.back().recompute_layers = layers;
    }
}

// One part of the layers less.
void add_modules(const Plan& plan, std::vector<Plan>& plans) {
    if (plan.recompute != schedule::Recompute::selective) return;
    for (const schedule::RecomputeModule module : schedule::all_recompute_modules) {
        if (!plan.recompute_modules.has(module)) continue;
        Plan other = plan;
        other.recompute_modules = plan.recompute_modules.without(module);
        plans.push_back(other.recompute_modules.empty() ? with_nothing_again(plan) : std::move(other));
    }
}

void add_shardings(const Plan& plan, std::vector<Plan>& plans) {
    if (!may_shard_otherwise(plan)) return;
    for (const Sharding sharding :
         {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
        if (sharding == plan.sharding) continue;
        plans.push_back(plan);
        plans.back().sharding = sharding;
        if (sharding == Sharding::none) plans.back().shard_degree = 0;
    }
}

// Of as many stages; those that cut sequences divide them by an axis of their own.
void add_schedules(const Plan& plan, std::vector<Plan>& plans) {
    if (plan.layout.pipeline == 1 || plan.passes_per_micro_batch() > 1) return;
    for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules()) {
        if (!is_searched(order) || order.cuts_sequences() || order.name == plan.schedule) continue;
        Plan other = plan;
        other.schedule = order.name;
        if (plan.schedule_parameters.index() != order.parameters.index()) other.schedule_parameters = {};
        if (!schedule::unsupported(order, schedule::shape_of(other))) plans.push_back(std::move(other));
    }
}

// Parts of layers that run again were looked at with every schedule and sharding of the space.
bool is_beside_space(const Plan& plan, bool was_refined) {
    return was_refined || plan.recomputes_some_layers() ||
           plan.context_communication == schedule::ContextCommunication::ring;
}

bool takes_groups_of(const Plan& plan, const Plan& refined) {
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    const auto* groups = std::get_if<schedule::GroupParameters>(&refined.schedule_parameters);
    if (!order || !groups || plan.schedule_parameters.index() != refined.schedule_parameters.index())
        return false;
    Plan other = plan;
    other.schedule_parameters = *groups;
    return groups->group_size <= plan.micro_batches &&
           !schedule::unsupported(*order, schedule::shape_of(other));
}

bool takes_shards_of(const Plan& plan, const Plan& refined) {
    const int degree = refined.effective_shard_degree();
    return may_shard_otherwise(plan) && plan.shards(Sharding::optimizer) &&
           refined.shards(Sharding::optimizer) && degree > 1 && plan.layout.data % degree == 0 &&
           nests_with_experts(plan.layout, degree);
}

}  // namespace

bool takes_buckets(const Plan& plan) { return plan.layout.data > 1 && !plan.shards(Sharding::parameters); }

std::vector<Plan> refined_alike(const Plan& plan, const Plan& refined) {
    Plan all = plan;
    std::vector<Plan> plans;
    const auto add = [&](const auto& change) {
        Plan other = plan;
        change(other);
        if (other == plan) return;
        change(all);
        plans.push_back(std::move(other));
    };
    if (takes_shards_of(plan, refined))
        add([&](Plan& other) {
            const int degree = refined.effective_shard_degree();
            other.shard_degree = degree == other.layout.data ? 0 : degree;
        });
    if (takes_groups_of(plan, refined))
        add([&](Plan& other) { other.schedule_parameters = refined.schedule_parameters; });
    if (takes_buckets(plan)) add([&](Plan& other) { other.gradient_bucket = refined.gradient_bucket; });
    if (plans.size() > 1) plans.insert(plans.begin(), std::move(all));
    return plans;
}

std::vector<Plan> refinements(const Plan& plan, bool was_refined) {
    std::vector<Plan> plans;
    add_shard_degrees(plan, plans);
    add_group_sizes(plan, plans);
    add_buckets(plan, plans);
    add_layers(plan, plans);
    add_modules(plan, plans);
    if (is_beside_space(plan, was_refined)) add_shardings(plan, plans);
    return plans;
}

std::vector<Plan> schedules_instead(const Plan& plan, bool was_refined) {
    std::vector<Plan> plans;
    if (is_beside_space(plan, was_refined)) add_schedules(plan, plans);
    return plans;
}

}  // namespace planner
