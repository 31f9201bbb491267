// What stages hold of parameters and state, and the buckets in which those travel.
#include <algorithm>

#include "core/index/integers.h"
#include "planner/partition/partitions.h"
#include "planner/stage_collection.h"

namespace planner {

const std::vector<schedule::StateElements>& StageCollection::state_elements(const schedule::Plan& plan,
                                                                            const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    return shape.made_once(shape.state_elements, &order, [&] {
        const std::vector<model::OperatorRange>& ranges = *stages(plan);
        std::vector<schedule::StateElements> elements;
        for (int rank = 0; rank < order.ranks; ++rank)
            elements.push_back(state_elements(plan, order, ranges, rank));
        return elements;
    });
}

schedule::StateElements StageCollection::state_elements(const schedule::Plan& plan,
                                                        const schedule::Schedule& order,
                                                        const std::vector<model::OperatorRange>& ranges,
                                                        int rank) const {
    std::vector<model::OperatorRange> mine;
    for (int s = 0; s < order.stages; ++s)
        if (schedule::rank_of_stage(order, s) == rank) mine.push_back(ranges[s]);
    return schedule::state_elements(planned(plan), mine, plan);
}

StageCollection::ParameterCount StageCollection::count_parameters(model::OperatorRange range) const {
    ParameterCount count{static_cast<double>(model::parameter_count(graph_, range)), 0};
    for (std::int32_t i = range.begin; i < range.end; ++i)
        for (const model::ParameterId id : graph_.operators[i].parameters)
            if (graph_.parameter(id).is_expert)
                count.experts += static_cast<double>(model::element_count(graph_.parameter(id).shape));
    return count;
}

schedule::StateElements StageCollection::share_of(const ParameterCount& count, const schedule::Plan& plan) {
    const int tensor = plan.layout.tensor, expert = plan.layout.expert;
    if (expert == 1) return {count.all / tensor, 0};
    return {(count.all - count.experts) / tensor, count.experts / tensor / expert};
}

schedule::StateElements StageCollection::parameter_count(const schedule::Plan& plan,
                                                         model::OperatorRange range) {
    ParameterCount count;
    {
        const std::lock_guard lock(guard_);
        const auto [entry, is_new] = parameter_counts_.try_emplace({range.begin, range.end});
        if (is_new) entry->second = count_parameters(range);
        count = entry->second;
    }
    return share_of(count, plan);
}

// Lowering divides the parameters of a rank among buckets stage by stage: the rest of the model, on other
// ranks, only tells which of them are tied.
const std::vector<StageCollection::Bucket>& StageCollection::buckets(const schedule::Plan& plan,
                                                                     model::OperatorRange stage) {
    const model::OperatorRange like = repetition_.first_like(stage);
    const std::lock_guard lock(guard_);
    const auto [entry, is_new] = buckets_.try_emplace(
        {plan.layout.tensor, plan.layout.expert, plan.layout.expert_tensor(), plan.sequence_parallel,
         plan.fetches_parameters(), plan.gradient_bucket.value, like.begin, like.end});
    if (!is_new) return entry->second;
    std::vector<schedule::StageInfo> stages;
    const auto add = [&](std::int32_t begin, std::int32_t end, int rank) {
        if (begin == end) return;
        schedule::StageInfo& info = stages.emplace_back();
        info.operators = {begin, end};
        info.rank = rank;
    };
    add(0, like.begin, 1);
    add(like.begin, like.end, 0);
    add(like.end, static_cast<std::int32_t>(graph_.operators.size()), 1);
    std::map<std::pair<std::int64_t, bool>, int> counts;
    for (const schedule::ParameterBucket& bucket :
         schedule::buckets_of_rank(planned(plan), plan, stages, 0).buckets)
        if (bucket.tied_ranks.empty()) ++counts[{bucket.elements, bucket.is_expert}];
    for (const auto& [what, count] : counts) entry->second.push_back({what.first, what.second, count});
    return entry->second;
}

// A bucket is closed once it has reached its size: where none of the smaller size has less than the larger
// one, it closes where that would, and so do those after it.
bool StageCollection::has_same_buckets(const schedule::Plan& plan, core::Bytes other_size) {
    schedule::Plan smaller = plan;
    smaller.gradient_bucket = std::min(plan.gradient_bucket, other_size);
    const core::Bytes larger = std::max(plan.gradient_bucket, other_size);
    const std::vector<model::OperatorRange> stages = ranges_of(graph_, plan.partition.first_units);
    return std::all_of(stages.begin(), stages.end(), [&](model::OperatorRange stage) {
        const std::vector<Bucket>& all = buckets(smaller, stage);
        return std::all_of(all.begin(), all.end(), [&](const Bucket& bucket) {
            const core::Bytes size = bucket.elements * core::size_of(plan.precision.gradients);
            return size < smaller.gradient_bucket || size >= larger;
        });
    });
}

double StageCollection::largest_parameter(const schedule::Plan& plan) const {
    const model::CostContext context = plan.cost_context();
    std::int64_t largest = 0;
    for (const std::int32_t i : core::indices(graph_.parameters))
        largest = std::max(largest, model::parameter_elements(planned(plan), model::ParameterId(i), context));
    return double(largest);
}

double StageCollection::tied_elements(const schedule::Plan& plan) const {
    double elements = 0;
    for (const model::TiedParameter& parameter : tied_)
        elements += double(model::element_count(graph_.parameter(parameter.parameter).shape)) *
                    double(parameter.units.size());
    return elements / plan.layout.tensor;
}

const std::vector<RankParameters>& StageCollection::rank_parameters(const schedule::Plan& plan,
                                                                    const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    return shape.made_once(shape.rank_parameters, &order,
                           [&] { return rank_parameters(plan, order, *stages(plan)); });
}

std::vector<RankParameters> StageCollection::rank_parameters(
    const schedule::Plan& plan, const schedule::Schedule& order,
    const std::vector<model::OperatorRange>& ranges) {
    std::vector<RankParameters> ranks(order.ranks);
    std::size_t unit = 0;
    for (int s = 0; s < order.stages; ++s) {
        const model::OperatorRange range = ranges[s];
        const int rank = schedule::rank_of_stage(order, s);
        RankParameters& of_rank = ranks[rank];
        const schedule::StateElements elements = parameter_count(plan, range);
        of_rank.dense += elements.dense;
        of_rank.experts += elements.experts;
        for (; unit < graph_.units.size() && graph_.units[unit].operators.end <= range.end; ++unit) {
            const schedule::StateElements of_unit = parameter_count(plan, graph_.units[unit].operators);
            of_rank.largest_unit = std::max(of_rank.largest_unit, of_unit.dense + of_unit.experts);
        }
    }
    return ranks;
}

StageCollection::TiedCopies StageCollection::copies_of(
    const model::TiedParameter& parameter, const schedule::Plan& plan, const schedule::Schedule& order,
    const std::function<int(std::int32_t unit)>& stage) const {
    TiedCopies copies;
    copies.elements = static_cast<double>(model::element_count(graph_.parameter(parameter.parameter).shape)) /
                      plan.layout.tensor;
    for (const std::int32_t unit : parameter.units)
        copies.ranks.push_back(schedule::rank_of_stage(order, stage(unit)));
    std::sort(copies.ranks.begin(), copies.ranks.end());
    copies.ranks.erase(std::unique(copies.ranks.begin(), copies.ranks.end()), copies.ranks.end());
    return copies;
}

std::vector<StageCollection::TiedCopies> StageCollection::tied_copies(
    const schedule::Plan& plan, const schedule::Schedule& order,
    const std::vector<model::OperatorRange>& ranges) const {
    std::vector<TiedCopies> all;
    for (const model::TiedParameter& parameter : tied_) {
        TiedCopies copies = copies_of(parameter, plan, order, [&](std::int32_t unit) {
            const std::int32_t begin = graph_.units[unit].operators.begin;
            const auto stage = std::find_if(ranges.begin(), ranges.end(),
                                            [&](model::OperatorRange range) { return begin < range.end; });
            return int(stage - ranges.begin());
        });
        if (copies.ranks.size() > 1) all.push_back(std::move(copies));
    }
    return all;
}

std::vector<StageCollection::TiedCopies> StageCollection::tied_ends(const schedule::Plan& plan,
                                                                    const schedule::Schedule& order) const {
    const std::vector<std::int32_t> ends = {0, core::count_of(graph_.units) - 1};
    std::vector<TiedCopies> all;
    for (const model::TiedParameter& parameter : tied_) {
        if (parameter.units != ends) continue;
        TiedCopies copies = copies_of(parameter, plan, order,
                                      [&](std::int32_t unit) { return unit == 0 ? 0 : order.stages - 1; });
        if (copies.ranks.size() > 1) all.push_back(std::move(copies));
    }
    return all;
}

}  // namespace planner
