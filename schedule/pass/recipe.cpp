#include "schedule/pass/recipe.h"

#include <algorithm>
#include <utility>

#include "core/index/integers.h"
#include "schedule/pass/lowering_pass.h"

namespace schedule {

using model::OperatorRange;

Step compute_step(OperatorRange operators, ComputePhase phase, std::vector<Hook> hooks) {
    Step step;
    step.phase = phase;
    step.operators = operators;
    step.hooks = std::move(hooks);
    return step;
}

Step own_step(std::vector<Hook> hooks) {
    Step step;
    step.kind = Step::Kind::own;
    step.hooks = std::move(hooks);
    return step;
}

Step collective_step(OperatorRange operators, CollectiveKind kind, GroupKind group, PayloadKind payload,
                     ComputePhase phase, core::Bytes bytes) {
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase;
    step.operators = operators;
    step.collective = kind;
    step.group = group;
    step.payload = payload;
    step.bytes = bytes;
    return step;
}

namespace {

void add_hook(std::vector<Hook>& hooks, Hook&& hook) {
    const auto same = std::find_if(hooks.begin(), hooks.end(), [&](const Hook& other) {
        return other.pass == hook.pass && other.what == hook.what;
    });
    if (same == hooks.end()) return hooks.push_back(std::move(hook));
    same->buckets.insert(same->buckets.end(), hook.buckets.begin(), hook.buckets.end());
}

}  // namespace

void OperatorCuts::with(std::int32_t op, Hook hook) { add(op, Place::with, own_step({std::move(hook)})); }

void OperatorCuts::run_again(std::int32_t op, OperatorRange operators) {
    Recipe steps;
    OperatorCuts(recipe_, operators, ComputePhase::recompute, passes_).append_to(steps);
    for (Step& step : steps) add(op, Place::again, std::move(step));
}

void OperatorCuts::append_to(Recipe& recipe) {
    for (const std::unique_ptr<LoweringPass>& pass : passes_) pass->cut(*this);
    const bool forward = is_forward();
    std::stable_sort(cuts_.begin(), cuts_.end(), [forward](const Cut& a, const Cut& b) {
        if (a.op != b.op) return forward ? a.op < b.op : b.op < a.op;
        return a.place < b.place;
    });
    // Operators not yet appended.
    OperatorRange left = range_;
    std::vector<Hook> hooks;
    // Appends those up to an operator, or up to and with it.
    const auto append = [&](std::int32_t op, bool with_it) {
        OperatorRange next = left;
        if (forward) next.end = left.begin = with_it ? op + 1 : op;
        else next.begin = left.end = with_it ? op : op + 1;
        if (next.size() > 0) recipe.push_back(compute_step(next, phase_, std::exchange(hooks, {})));
    };
    for (Cut& cut : cuts_) {
        switch (cut.place) {
            case Place::with: add_hook(hooks, std::move(cut.step.hooks.front())); continue;
            case Place::again:
            case Place::before: append(cut.op, false); break;
            case Place::instead:
                append(cut.op, false);
                (forward ? left.begin : left.end) = forward ? cut.op + 1 : cut.op;
                break;
            case Place::after: append(cut.op, true); break;
        }
        recipe.push_back(std::move(cut.step));
        // What it computes instead is the operator's own work.
        if (recipe.back().kind == Step::Kind::compute && cut.place == Place::instead)
            for (Hook& hook : std::exchange(hooks, {})) recipe.back().hooks.push_back(std::move(hook));
    }
    if (left.size() > 0) recipe.push_back(compute_step(left, phase_, std::move(hooks)));
}

void RecipeDraft::append_range(OperatorRange range, ComputePhase phase) {
    OperatorCuts(context_, range, phase, passes_).append_to(steps_);
}

void RecipeDraft::flush() {
    if (open_.size() > 0) append_range(open_, context_.phase);
    (is_forward() ? open_.begin : open_.end) = is_forward() ? open_.end : open_.begin;
}

void RecipeDraft::append(std::vector<Hook> hooks) {
    flush();
    if (!hooks.empty()) steps_.push_back(own_step(std::move(hooks)));
}

void RecipeDraft::run_again(OperatorRange unit) {
    flush();
    append_range(unit, ComputePhase::recompute);
    append_range(unit, context_.phase);
    has_run_again_ = true;
}

void RecipeDraft::enter(std::int32_t unit) {
    has_run_again_ = false;
    for (const std::unique_ptr<LoweringPass>& pass : passes_) pass->enter_unit(*this, unit);
    const OperatorRange operators = context_.units[unit];
    if (is_forward()) open_.end = operators.end;
    else open_.begin = operators.begin;
    if (has_run_again_) open_.end = open_.begin;
    for (const std::unique_ptr<LoweringPass>& pass : passes_) pass->leave_unit(*this, unit);
}

// The first step that works takes the buffers of the pass through the stage, the last gives them back.
void RecipeDraft::mark_buffers() {
    const auto works = [](const Step& step) { return step.works(); };
    const auto first = std::find_if(steps_.begin(), steps_.end(), works);
    if (first == steps_.end()) return;
    first->takes = true;
    std::find_if(steps_.rbegin(), steps_.rend(), works)->hooks.push_back({});
}

Recipe RecipeDraft::make() {
    const std::int32_t count = core::count_of(context_.units);
    const std::int32_t edge = is_forward() ? context_.operators.begin : context_.operators.end;
    open_ = {edge, edge};
    for (std::int32_t i = 0; i < count; ++i) enter(is_forward() ? i : count - 1 - i);
    flush();
    // Without operators a pass is one step.
    if (count == 0) steps_.push_back(compute_step({}, context_.phase));
    mark_buffers();
    for (const std::unique_ptr<LoweringPass>& pass : passes_) pass->finish(*this);
    return std::move(steps_);
}

}  // namespace schedule
