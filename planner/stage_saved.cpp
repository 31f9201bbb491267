// What runs of units keep for their backward: of many alike as much more with each as with the one before.
#include <algorithm>
#include <optional>

#include "planner/stage_collection.h"
#include "schedule/pass/recompute.h"

namespace planner {

std::optional<StageCollection::Shorter> StageCollection::shorter_alike(const schedule::Plan& plan,
                                                                       model::OperatorRange range) const {
    constexpr std::size_t alike = 3;  // and one more at the other end
    const std::vector<model::Unit>& units = graph_.units;
    const auto first = std::size_t(graph_.operators[std::size_t(range.begin)].unit),
               end = std::size_t(graph_.operators[std::size_t(range.end) - 1].unit) + 1;
    if (end - first <= alike) return std::nullopt;
    const auto are_alike = [&](std::size_t from) {
        return unit_like_[from] == unit_like_[from + 1] && unit_like_[from] == unit_like_[from + 2];
    };
    // Of a number of layers the first of a stage run again.
    const auto runs_again = [&] {
        const std::vector<char> again = schedule::recomputed_units(graph_, schedule::units_of(graph_, range),
                                                                   plan.recompute, plan.recompute_layers);
        return std::find(again.end() - alike, again.end(), 1) != again.end();
    };
    if (are_alike(end - alike) && (plan.recompute_layers == 0 || !runs_again()))
        return Shorter({range.begin, units[end - 2].operators.end},
                       {range.begin, units[end - 3].operators.end});
    if (are_alike(first) && plan.recompute_layers == 0)
        return Shorter({units[first + 1].operators.begin, range.end},
                       {units[first + 2].operators.begin, range.end});
    return std::nullopt;
}

const StageCollection::Saved& StageCollection::saved(Shape& shape, const schedule::Plan& plan,
                                                     model::OperatorRange range, int segment) {
    const model::OperatorRange like = repetition_.first_like(range);
    const auto [entry, is_new] = shape.saved.try_emplace(run_key(plan, like, segment));
    Saved& of_range = entry->second;
    if (!is_new) return of_range;
    if (const std::optional<Shorter> shorter = shorter_alike(plan, like)) {
        const Saved& one = saved(shape, plan, shorter->first, segment);
        const Saved& two = saved(shape, plan, shorter->second, segment);
        of_range = {one.whole + (one.whole - two.whole),
                    one.for_weights + (one.for_weights - two.for_weights)};
    } else {
        const schedule::ActivationFootprint& walked = footprint(shape, plan, like, segment);
        of_range = {walked.saved, walked.saved_for_weight + walked.kept_for_weight};
    }
    return of_range;
}

StageCollection::Saved StageCollection::saved(const schedule::Plan& plan, model::OperatorRange range,
                                              int segment) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    return saved(shape, plan, range, segment);
}

}  // namespace planner
