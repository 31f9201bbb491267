// What stages hold of activations, and of parameters while they work.
#include <algorithm>
#include <optional>
#include <span>

#include "core/errors.h"
#include "core/index/integers.h"
#include "planner/partition/partitions.h"
#include "planner/stage_collection.h"
#include "schedule/pipeline/registry.h"
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

StageCollection::Gathered::Gathered(const schedule::Plan& plan) {
    if (!plan.fetches_parameters() ||
        (plan.layout.pipeline > 1 && sim::framework_traits(plan.framework).gathers_once_in_pipelines))
        return;
    has_dense = plan.keeps_parameters_on_hosts() || plan.pieces(false) > 1;
    has_experts = plan.keeps_parameters_on_hosts() || plan.pieces(true) > 1;
    has_dense_gradients = plan.shards(schedule::Sharding::gradients) && plan.pieces(false) > 1;
    has_expert_gradients = plan.shards(schedule::Sharding::gradients) && plan.pieces(true) > 1;
}

// From before a unit's first operator to behind its last one; whole gradients of the last unit from when its
// backward begins, when all that its stage saved is there or makes room for the gradients of what it made.
StageCollection::WholeParameters StageCollection::whole_parameters(const schedule::Plan& plan,
                                                                   model::OperatorRange stage,
                                                                   bool is_one_copy) const {
    WholeParameters whole;
    const Gathered gathered(plan);
    if (!gathered.has_dense && !gathered.has_experts) return whole;
    const core::Bytes parameter = core::size_of(plan.precision.parameters),
                      gradient = core::size_of(plan.precision.gradients);
    const auto first = std::size_t(graph_.operators[std::size_t(stage.begin)].unit),
               last = std::size_t(graph_.operators[std::size_t(stage.end) - 1].unit);
    const auto elements_of = [&](std::size_t unit, bool dense, bool experts) {
        const schedule::StateElements share = share_of(unit_parameters_[unit], plan);
        return (dense ? share.dense : 0) + (experts ? share.experts : 0);
    };
    double least = elements_of(first, gathered.has_dense, gathered.has_experts);
    for (std::size_t unit = first + 1; unit <= last; ++unit)
        least = std::min(least, elements_of(unit, gathered.has_dense, gathered.has_experts));
    whole.least = parameter * least;
    const bool is_tied = std::any_of(tied_.begin(), tied_.end(), [&](const model::TiedParameter& parameter) {
        return std::find(parameter.units.begin(), parameter.units.end(), std::int32_t(last)) !=
               parameter.units.end();
    });
    whole.last = parameter * elements_of(last, gathered.has_dense, gathered.has_experts);
    if (is_one_copy && !is_tied)
        whole.last +=
            gradient * elements_of(last, gathered.has_dense_gradients, gathered.has_expert_gradients);
    return whole;
}

const std::vector<RankActivations>& StageCollection::activations(const schedule::Plan& plan,
                                                                 const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    const int horizon = plan.offload != schedule::Offload::none ? plan.activation_loading_horizon : 0;
    return shape.made_once(shape.activations, std::tuple(&order, horizon, Gathered(plan)),
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
    std::vector<WholeParameters> whole(ranges.size());
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
        whole[s] = whole_parameters(plan, ranges[s], order.directions == 1);
    }
    const auto change_of = [&](const schedule::Action& action, const Leaving* away) {
        Change change = change_by(action, {&mine[first_of[action.stage]], passes}, away);
        const WholeParameters& gathered = whole[std::size_t(action.stage)];
        if (action.kind == schedule::ActionKind::backward)
            change.transient = std::max(change.transient + gathered.least, gathered.last);
        else if (action.kind == schedule::ActionKind::forward ||
                 action.kind == schedule::ActionKind::backward_input)
            change.transient += gathered.least;
        return change;
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
        const schedule::PipelineSchedule* const registered = schedule::find_pipeline_schedule(order.name);
        if (registered && registered->goes_forward_first)
            for (const schedule::ActivationFootprint* of_stage : mine)
                result.of_a_micro_batch += of_stage->saved;
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

}  // namespace planner
