// What stages hold: activations, parameters and state, and the buckets in which those travel.
#include <algorithm>
#include <optional>
#include <span>

#include "core/errors.h"
#include "core/index/integers.h"
#include "planner/partition/partitions.h"
#include "planner/stage_collection.h"
#include "sim/cost/framework/framework_lookup.h"

namespace planner {

const schedule::ActivationFootprint& StageCollection::footprint(Shape& shape, const schedule::Plan& plan,
                                                                model::OperatorRange stage, int segment) {
    const model::OperatorRange like = repetition_.first_like(stage);
    const auto [entry, is_new] = shape.footprints.try_emplace(run_key(plan, like, segment));
    if (!is_new) return entry->second;
    schedule::Plan bounding = plan;
    // Frameworks that keep some products and run all else again hold less than the Program, and no less than
    // if whole units ran again.
    if (plan.runs_cores_again_alone() && sim::framework_traits(plan.framework).recomputes_alternate_products)
        bounding.recompute = schedule::Recompute::full;
    if (work_) work_->add(like.end - like.begin, per_live_operator);
    return entry->second = schedule::activation_footprint(graph_of(plan, segment), like, bounding);
}

namespace {

bool is_of_rank(const schedule::Schedule& order, int stage, int rank) {
    for (int direction = 0; direction < order.directions; ++direction)
        if (schedule::rank_of_stage(order, stage, direction) == rank) return true;
    return false;
}

// Activations of a stage that may be offloaded: of the first u layers together, and of the largest of them.
struct Leaving {
    core::Bytes bytes, largest;
    std::int64_t copies = 0;
};
std::vector<Leaving> leaving_of(const schedule::ActivationFootprint& footprint) {
    std::vector<Leaving> sums(1);
    for (const schedule::ActivationFootprint::UnitSaved& unit : footprint.offloadable) {
        const Leaving& before = sums.back();
        sums.push_back({before.bytes + unit.bytes, std::max(before.largest, unit.bytes),
                        before.copies + (unit.bytes.value > 0 ? 1 : 0)});
    }
    return sums;
}

// Number of layers of a stage whose activations are offloaded in each of its passes
// (schedule/pass/axis/offload.cpp), by stage and micro-batch. Layers run backward in reverse, so the first
// ones wait longest. A task of a rank is a pass through one layer.
class UnitsLeaving {
public:
    UnitsLeaving(const schedule::Schedule& order, int rank, int horizon,
                 const std::vector<std::vector<Leaving>>& leaving)
        : micro_batches_(order.micro_batches) {
        first_of_.assign(order.stages, 0);
        for (int s = 0; s < order.stages; ++s)
            if (schedule::rank_of_stage(order, s) == rank) {
                first_of_[s] = std::ssize(count_);
                count_.resize(count_.size() + micro_batches_);
            }
        std::int64_t task = 0;
        for (const schedule::Action& action : order.actions[rank]) {
            if (action.kind != schedule::ActionKind::forward && !schedule::is_backward_part(action.kind))
                continue;
            const std::int64_t units = std::ssize(leaving[action.stage]) - 1;
            std::int64_t& count = count_[index_of(action)];
            if (action.kind == schedule::ActionKind::forward) count = task;  // until backward is met
            else if (action.kind != schedule::ActionKind::backward_weight) {
                const std::int64_t forward = count;
                count = 0;
                while (count < units && schedule::leaves(forward + count, task + units - 1 - count, horizon))
                    ++count;
            }
            task += units;
        }
    }
    std::size_t of(const schedule::Action& action) const { return count_[index_of(action)]; }

private:
    std::size_t index_of(const schedule::Action& action) const {
        return first_of_[action.stage] + action.micro_batch;
    }

    int micro_batches_;
    std::vector<std::int64_t> first_of_, count_;
};

constexpr std::size_t action_kinds = std::size_t(core::position_of(schedule::ActionKind::optimizer_step)) + 1;

// What a pass does to the activations that its rank holds: as it begins, while it runs, and as it ends.
struct Change {
    core::Bytes before, transient, after;
};

// `footprints`: of its stage, what each segment of a micro-batch keeps; `away`: of what may leave, where it
// may.
Change change_by(const schedule::Action& action,
                 std::span<const schedule::ActivationFootprint* const> footprints, const Leaving* away) {
    const schedule::ActivationFootprint& f = *footprints[std::size_t(action.segment)];
    const double last = double(footprints.size()) - 1;
    const core::Bytes left = away ? away->bytes : core::Bytes(0);
    const core::Bytes largest = away ? away->largest : core::Bytes(0);
    switch (action.kind) {
        case schedule::ActionKind::forward:
            return {f.saved - left, f.forward_transient + largest, core::Bytes(0)};
        case schedule::ActionKind::backward: {
            Change change{core::Bytes(0), f.backward_transient + largest, left - f.saved};
            if (last == 0) return change;
            // The last segment leaves gradients for the keys and values of the earlier ones, partly where its
            // own activations were; they go with these.
            if (action.segment == last) {
                change.before = f.key_value_gradient * last - f.reused;
                change.after += f.reused;
            } else {
                change.after -= footprints.back()->key_value_gradient;
            }
            return change;
        }
        case schedule::ActionKind::backward_input:
            // Activations loaded for weight gradients stay.
            return {f.kept_for_weight, away ? largest : f.input_transient,
                    left + f.saved_for_weight - f.saved};
        case schedule::ActionKind::backward_weight:
            return {core::Bytes(0), f.weight_transient,
                    core::Bytes(0) - (f.saved_for_weight + f.kept_for_weight)};
        case schedule::ActionKind::recompute:
        case schedule::ActionKind::send_forward:
        case schedule::ActionKind::receive_forward:
        case schedule::ActionKind::send_backward:
        case schedule::ActionKind::receive_backward:
        case schedule::ActionKind::unshard:
        case schedule::ActionKind::reshard:
        case schedule::ActionKind::reduce_gradient:
        case schedule::ActionKind::optimizer_step: return {};  // these cells hold no activations
    }
    throw core::InternalError("broken promise: every action has a kind");
}

}  // namespace

const std::vector<RankActivations>& StageCollection::activations(const schedule::Plan& plan,
                                                                 const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    const bool offloads = plan.offload != schedule::Offload::none;
    return shape.made_once(shape.activations,
                           std::pair(&order, offloads ? plan.activation_loading_horizon : 0),
                           [&] { return activations(plan, order, *stages(plan)); });
}

std::vector<RankActivations> StageCollection::activations(const schedule::Plan& plan,
                                                          const schedule::Schedule& order,
                                                          const std::vector<model::OperatorRange>& ranges) {
    std::vector<RankActivations> ranks;
    for (int rank = 0; rank < order.ranks; ++rank) ranks.push_back(activations(plan, order, ranges, rank));
    return ranks;
}

RankActivations StageCollection::activations(const schedule::Plan& plan, const schedule::Schedule& order,
                                             const std::vector<model::OperatorRange>& ranges, int rank) {
    const bool offloads = plan.offload != schedule::Offload::none;
    const std::size_t passes = plan.passes_per_micro_batch();
    std::vector<const schedule::ActivationFootprint*> mine;  // of the rank's stages, and of each part
    std::vector<std::size_t> first_of(ranges.size());        // by stage, among these
    std::vector<std::vector<Leaving>> leaving(offloads ? ranges.size() : 0);
    Shape* const of_all = plan.recomputes_by_stage() ? nullptr : &shape_of(plan);
    for (const std::int32_t s : core::indices(ranges)) {
        if (!is_of_rank(order, s, rank)) continue;
        const std::optional<schedule::Plan> own = of_all ? std::nullopt : std::optional(plan.of_stage(s));
        const schedule::Plan& of_stage = own ? *own : plan;
        Shape& shape = of_all ? *of_all : shape_of(of_stage);
        const std::lock_guard lock(shape.guard);
        first_of[s] = mine.size();
        for (std::size_t segment = 0; segment < passes; ++segment)
            mine.push_back(&footprint(shape, of_stage, ranges[s], int(segment)));
        if (offloads) leaving[s] = leaving_of(*mine.back());
    }
    const auto change_of = [&](const schedule::Action& action, const Leaving* away) {
        return change_by(action, {&mine[first_of[action.stage]], passes}, away);
    };
    RankActivations result;
    core::Bytes held;
    const auto pass = [&](const Change& change) {
        held += change.before;
        result.peak = std::max(result.peak, held + change.transient);
        held += change.after;
    };
    if (!offloads) {
        // Of all micro-batches alike.
        std::vector<std::optional<Change>> known(mine.size() * action_kinds);
        for (const schedule::Action& action : order.actions[rank]) {
            const std::size_t place = first_of[action.stage] + std::size_t(action.segment);
            std::optional<Change>& change =
                known[place * action_kinds + std::size_t(core::position_of(action.kind))];
            if (!change) change = change_of(action, nullptr);
            pass(*change);
        }
        return result;
    }
    const UnitsLeaving units(order, rank, plan.activation_loading_horizon, leaving);
    for (const schedule::Action& action : order.actions[rank]) {
        const Leaving& away = leaving[std::size_t(action.stage)][units.of(action)];
        pass(change_of(action, &away));
        if (action.kind != schedule::ActionKind::forward) continue;
        result.offloaded += away.bytes;
        result.copies += away.copies;
    }
    return result;
}

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

schedule::StateElements StageCollection::parameter_count(const schedule::Plan& plan,
                                                         model::OperatorRange range) {
    ParameterCount count;
    {
        const std::lock_guard lock(guard_);
        const auto [entry, is_new] = parameter_counts_.try_emplace({range.begin, range.end});
        if (is_new) {
            entry->second.all = static_cast<double>(model::parameter_count(graph_, range));
            for (std::int32_t i = range.begin; i < range.end; ++i)
                for (const model::ParameterId id : graph_.operators[i].parameters)
                    if (graph_.parameter(id).is_expert)
                        entry->second.experts +=
                            static_cast<double>(model::element_count(graph_.parameter(id).shape));
        }
        count = entry->second;
    }
    const int tensor = plan.layout.tensor, expert = plan.layout.expert;
    if (expert == 1) return {count.all / tensor, 0};
    return {(count.all - count.experts) / tensor, count.experts / tensor / expert};
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
