#include "schedule/pass/liveness.h"

#include <algorithm>

#include "core/errors.h"
#include "core/index/integers.h"
#include "model/operators/rank_share.h"
#include "model/segment.h"
#include "schedule/pass/recompute.h"

namespace schedule {

using model::OperatorKind;

StageLiveness::StageLiveness(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan,
                             bool is_forward_only, const model::WorkspaceRules* workspace)
    : graph_(graph),
      stage_(stage),
      plan_(plan),
      context_(plan.cost_context()),
      is_forward_only_(is_forward_only),
      workspace_(workspace),
      keeps_alternate_products_(plan.runs_cores_again_alone() && workspace &&
                                workspace->recomputes_alternate_products),
      recompute_(keeps_alternate_products_ ? Recompute::full : plan.recompute) {
    core::require(!plan.recomputes_by_stage(), "a stage is walked whose recomputation is known");
    const std::size_t tensors = graph.tensors.size();
    storage_.resize(tensors);
    last_use_.assign(tensors, -1);
    lowest_saver_.assign(tensors, -1);
    highest_saver_.assign(tensors, -1);
    is_saved_.assign(tensors, 0);
    is_made_again_.assign(tensors, 0);
    weights_need_.assign(tensors, 0);
    is_received_.assign(tensors, 0);
    is_sent_.assign(tensors, 0);
    is_overwritten_.assign(tensors, 0);
    is_held_.assign(tensors, 0);
    has_gradient_held_.assign(tensors, 0);
    bytes_.assign(tensors, -1);
    for (std::size_t i = 0; i < tensors; ++i) {
        const model::Operator& producer = graph.op(graph.tensors[i].producer);
        // Tensors are numbered in order of production, so the input's storage is known.
        storage_[i] = is_shared(producer) ? storage_[producer.inputs[0].index] : static_cast<Index>(i);
    }
    units_ = units_of(graph, stage);
    unit_is_recomputed_ = recomputed_units(graph, units_, recompute_, plan.recompute_layers);
    info_.resize(stage.size());
    reruns_.resize(units_.size());
    if (!is_forward_only)
        for (std::size_t u = 0; u < units_.size(); ++u) {
            reruns_[u] = reruns(graph, units_[u], plan);
            for (const Rerun& rerun : reruns_[u])
                for (Index i = rerun.operators.begin; i < rerun.operators.end; ++i) {
                    info_[i - stage.begin].is_rerun = true;
                    is_made_again_[storage(op(i).output)] = 1;
                }
        }
    for (const model::TensorId tensor : model::tensors_crossing(graph, stage.begin))
        is_received_[storage(tensor)] = 1;
    for (const model::TensorId tensor : model::tensors_crossing(graph, stage.end))
        is_sent_[storage(tensor)] = 1;
    for (Index i = stage.begin; i < stage.end; ++i)
        for (const model::TensorId tensor : op(i).inputs) {
            const Index own = storage(tensor);
            last_use_[own] = i;
            is_overwritten_[own] =
                !is_received_[own] && !is_sent_[own] && model::gradient_overwrites(graph, tensor, context_);
        }
    find_saved();
}

// Views, and the conjugate operators of tensor parallelism where they keep the size.
bool StageLiveness::is_shared(const model::Operator& op) const {
    if (model::is_view(op.kind)) return true;
    return (op.kind == OperatorKind::parallel_enter || op.kind == OperatorKind::parallel_exit) &&
           !context_.sequence_parallel;
}

double StageLiveness::bytes(Index tensor) const {
    double& known = bytes_[tensor];
    if (known < 0) known = model::tensor_bytes(graph_, model::TensorId(tensor), context_).value;
    return known;
}

void StageLiveness::take(double bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    beside_saved_ = std::max(beside_saved_, held_ - saved_held_);
}

void StageLiveness::touch(double bytes) {
    take(bytes);
    drop(bytes);
}

void StageLiveness::touch(Index i, model::Phase phase) {
    if (workspace_)
        touch(model::kernel_workspace(graph_, model::OperatorId(i), phase, context_, *workspace_).value);
}

void StageLiveness::hold(Index tensor) {
    if (is_held_[tensor]) return;
    is_held_[tensor] = 1;
    if (is_saved_[tensor]) saved_held_ += bytes(tensor);
    take(bytes(tensor));
}

void StageLiveness::release(Index tensor) {
    if (!is_held_[tensor]) return;
    is_held_[tensor] = 0;
    if (is_saved_[tensor]) saved_held_ -= bytes(tensor);
    drop(bytes(tensor));
}

void StageLiveness::find_saved() {
    const auto save = [&](Index tensor, Index saver) {
        is_saved_[tensor] = 1;
        Index& lowest = lowest_saver_[tensor];
        lowest = lowest < 0 ? saver : std::min(lowest, saver);
        highest_saver_[tensor] = std::max(highest_saver_[tensor], saver);
    };
    for (std::size_t u = 0; u < units_.size(); ++u) {
        const model::OperatorRange unit = units_[u];
        for (Index i = unit.begin; i < unit.end; ++i) {
            const model::SavedForBackward needs =
                model::saved_for_backward(graph_, model::OperatorId(i), context_);
            OperatorInfo& own = info_[i - stage_.begin];
            own.saved_context = needs.saved_context.value;
            own.late_context = needs.late_context.value;
            own.recomputable = own.is_rerun ? own.saved_context
                               : is_recomputed(op(i), plan_) && !keeps_alternate_products_
                                   ? needs.recomputable_context.value
                                   : 0;
            own.saved_begin = saved_pool_.size();
            own.saved_count = needs.tensors.size();
            for (const model::TensorId tensor : needs.tensors) {
                const model::Operator& producer = graph_.op(graph_.tensor(tensor).producer);
                saved_pool_.push_back(
                    storage(model::gathers_tokens(producer, context_) ? producer.inputs[0] : tensor));
                if (!op(i).parameters.empty()) weights_need_[saved_pool_.back()] = 1;
            }
            if (is_forward_only_) continue;
            if (op(i).kind == OperatorKind::attention && !graph_.part.is_whole()) {
                own.key_value = model::key_value_bytes(graph_, op(i), context_).value;
                own.copies_key_value = unit_is_recomputed_[u] && !graph_.part.is_last();
                key_values_ += own.key_value;
                if (own.copies_key_value) saved_contexts_ += own.key_value;
            }
            if (unit_is_recomputed_[u]) {
                if (keeps_alternate_products_) own.kept_output = kept_output_bytes(i);
                saved_contexts_ += own.kept_output;
                for (const model::TensorId tensor : op(i).inputs)
                    if (graph_.tensor(tensor).producer.index < unit.begin) save(storage(tensor), unit.begin);
            } else {
                for (const Index tensor : saved(own))
                    if (!is_made_again_[tensor]) save(tensor, i);
                saved_contexts_ += own.saved_context - own.recomputable;
            }
        }
        for (const Rerun& rerun : reruns_[u])
            for (const Index tensor : inputs_of(rerun)) save(tensor, rerun.operators.begin);
    }
}

// Runs operators forward; what `kept` marks stays, and so do the operators' own saved contexts when they are
// wanted.
void StageLiveness::run_forward(model::OperatorRange range, const std::vector<char>& kept,
                                const std::vector<Index>& last_use, bool keeps_saved_contexts,
                                bool is_again) {
    for (Index i = range.begin; i < range.end; ++i) {
        const Index output = storage(op(i).output);
        const double saved_context = info(i).saved_context, gathered = gathered_bytes(i),
                     passing = 2 * passed_bytes(i);  // what a piece attends to, and what comes for the next
        take(passing);
        take(2 * gathered);  // as they come, and in the order of the sequence
        drop(gathered);
        touch(exchanged_heads(i, op(i).inputs));
        hold(output);
        take(saved_context);
        touch(info(i).late_context);
        touch(i, model::Phase::forward);
        const double dropped = !keeps_saved_contexts          ? saved_context
                               : is_again && info(i).is_rerun ? 0
                                                              : info(i).recomputable;
        drop(dropped);
        if (info(i).copies_key_value && !is_again) take(info(i).key_value);
        if (!is_again) take(info(i).kept_output);
        if (keeps_saved_contexts) saved_held_ += saved_context - info(i).recomputable;
        drop(gathered + passing);
        const auto free_if_dead = [&](Index tensor) {
            if (!kept[tensor] && last_use[tensor] <= i) release(tensor);
        };
        for (const model::TensorId tensor : op(i).inputs) free_if_dead(storage(tensor));
        free_if_dead(output);
        touch(exchanged_bytes(i));
        touch(exchanged_heads(i, {op(i).output}));
    }
}

double StageLiveness::kept_output_bytes(Index i) const {
    const model::Operator& kept = op(i);
    if (kept.kind != OperatorKind::linear && !kept.in_attention_core) return 0;
    return (1 - recomputed_share(graph_, kept)) * bytes(storage(kept.output)) +
           (kept.kind == OperatorKind::attention ? info(i).saved_context : 0);
}

double StageLiveness::exchanged_bytes(Index i) const {
    return model::exchanges_routed_tokens(op(i), context_) ? bytes(storage(op(i).output)) : 0;
}

// As they are and as they will be.
double StageLiveness::exchanged_heads(Index i, const std::vector<model::TensorId>& tensors) const {
    double sum = 0;
    if (model::exchanges_heads(op(i), context_))
        for (const model::TensorId tensor : tensors) sum += bytes(storage(tensor));
    return sum;
}

double StageLiveness::gathered_bytes(Index i) const {
    return model::gathers_keys(op(i), context_) ? model::gathered_key_bytes(graph_, op(i), context_).value
                                                : 0;
}

double StageLiveness::passed_bytes(Index i) const {
    return model::passes_keys(op(i), context_) ? model::passed_key_bytes(graph_, op(i), context_).value : 0;
}

core::Bytes StageLiveness::offloadable(std::size_t u, bool for_weight) const {
    const model::OperatorRange unit = units_[u];
    double sum = 0;
    for (const std::int32_t t : core::indices(is_saved_)) {
        if (for_weight && !is_held_[t]) continue;
        const bool is_of_unit = is_saved_[t] && lowest_saver_[t] >= unit.begin &&
                                highest_saver_[t] < unit.end && last_use_[t] < unit.end;
        if (is_of_unit && !is_received_[t] && !is_sent_[t] &&
            graph_.op(graph_.tensors[t].producer).kind != OperatorKind::input)
            sum += bytes(t);
    }
    if (!unit_is_recomputed_[u])
        for (Index i = unit.begin; i < unit.end; ++i)
            if (!for_weight || !op(i).parameters.empty()) sum += info(i).saved_context - info(i).recomputable;
    return core::Bytes(sum);
}

void StageLiveness::run_unit_backward(std::size_t u, bool is_split) {
    const model::OperatorRange unit = units_[u];
    const bool again = unit_is_recomputed_[u];
    for (Index i = unit.end - 1; i >= unit.begin; --i) {
        run_again_before(u, i, is_split);
        const model::Operator& current = op(i);
        const OperatorInfo& own = info(i);
        const std::size_t output = storage(current.output);
        const bool runs = current.kind == OperatorKind::cross_entropy || has_gradient_held_[output];
        const bool keeps_for_weight = is_split && !current.parameters.empty();
        if (!own.is_rerun) take(own.recomputable);
        touch(exchanged_bytes(i));
        if (runs) {
            take(own.late_context);
            touch(exchanged_heads(i, {current.output}));
            // Of a ring also their gradients, as they go and as they come; with two ranks the last keys are
            // there when those go.
            const double passing = (model::ring_pieces(context_) > 2 ? 4 : 3) * passed_bytes(i);
            take(2 * gathered_bytes(i) + passing);
            for (const model::TensorId tensor : current.inputs) {
                const Index input = storage(tensor);
                // With the split, the gathered input is a matter of backward_weight.
                const bool is_gathered =
                    model::gathers_tokens(graph_.op(graph_.tensor(tensor).producer), context_);
                if (is_gathered && !is_split &&
                    std::find(saved(own).begin(), saved(own).end(),
                              storage(model::storage_of(graph_, tensor))) != saved(own).end())
                    hold(input);
                if (!model::has_gradient(graph_, tensor) || has_gradient_held_[input]) continue;
                has_gradient_held_[input] = 1;
                if (!is_overwritten_[input]) take(bytes(input));
            }
            // The last segment of a sequence is the first to leave gradients for the keys and values of the
            // others, which are done with them after their own.
            if (own.key_value > 0 && graph_.part.is_last()) take(graph_.part.index * own.key_value);
            touch(i, model::Phase::backward_input);
            if (own.key_value > 0 && !graph_.part.is_last()) drop(own.key_value);
            if (own.copies_key_value) drop(own.key_value);
            if (!is_split) touch(i, model::Phase::backward_weight);
            drop(2 * gathered_bytes(i) + passing);
            const bool is_view =
                !current.inputs.empty() && storage(current.inputs[0]) == static_cast<Index>(output);
            if (has_gradient_held_[output] && !is_view) {
                has_gradient_held_[output] = 0;
                if (is_overwritten_[output] && !keeps_for_weight) release(static_cast<Index>(output));
                else if (!keeps_for_weight) drop(bytes(static_cast<Index>(output)));
            }
        }
        if (model::gathers_tokens(current, context_)) release(storage(current.output));
        if (!keeps_for_weight) {
            drop(own.saved_context);
            if (runs) drop(own.late_context);
            if (!again) saved_held_ -= own.saved_context - own.recomputable;
        }
        for (const Index tensor : saved(own))
            if (lowest_saver_[tensor] == i && !is_overwritten_[tensor]) release(tensor);
        release_inputs_of_rerun(u, i);
        if (runs) touch(exchanged_heads(i, current.inputs));
    }
}

std::vector<StageLiveness::Index> StageLiveness::inputs_of(const Rerun& rerun) const {
    std::vector<Index> storages;
    for (Index i = rerun.operators.begin; i < rerun.operators.end; ++i)
        for (const model::TensorId tensor : op(i).inputs)
            if (!rerun.has(graph_.tensor(tensor).producer.index)) storages.push_back(storage(tensor));
    return storages;
}

void StageLiveness::run_again(model::OperatorRange operators, model::OperatorRange readers, bool is_split) {
    // What operators behind the readers saved is computed a second time: their backward has ended, except for
    // backward_weight of a split backward.
    kept_again_.resize(is_saved_.size());
    stays_again_.resize(is_saved_.size());
    last_use_again_.resize(is_saved_.size());
    const auto forget = [&](Index tensor) {
        kept_again_[tensor] = stays_again_[tensor] =
            is_saved_[tensor] && (lowest_first_[tensor] < readers.end || (is_split && weights_need_[tensor]));
        last_use_again_[tensor] = -1;
    };
    for_each_wanted(operators, forget);
    for_each_wanted(readers, forget);
    for (Index i = operators.begin; i < operators.end; ++i) forget(storage(op(i).output));
    for (Index i = operators.begin; i < operators.end; ++i)
        for (const model::TensorId tensor : op(i).inputs) last_use_again_[storage(tensor)] = i;
    for (Index i = readers.end - 1; i >= readers.begin; --i)
        for (const Index tensor : saved(info(i))) {
            if (!stays_again_[tensor]) lowest_saver_[tensor] = i;
            kept_again_[tensor] = 1;
        }
    const double saved_before = saved_held_;
    // What was kept is taken for what would be computed.
    for (Index i = operators.begin; i < operators.end; ++i) drop(info(i).kept_output);
    run_forward(operators, kept_again_, last_use_again_, true, true);
    saved_held_ = saved_before;  // what is computed anew does not wait
    if (is_split) keep_for_weights(readers);
}

void StageLiveness::run_again_before(std::size_t u, Index i, bool is_split) {
    for (const Rerun& rerun : reruns_[u])
        if (rerun.before == i) run_again(rerun.operators, rerun.readers(), is_split);
}

void StageLiveness::release_inputs_of_rerun(std::size_t u, Index first) {
    for (const Rerun& rerun : reruns_[u])
        if (rerun.operators.begin == first)
            for (const Index tensor : inputs_of(rerun))
                if (lowest_saver_[tensor] == first && !is_overwritten_[tensor]) release(tensor);
}

// What an operator with parameters saved stays until backward_weight.
void StageLiveness::keep_for_weights(model::OperatorRange operators) {
    for (Index i = operators.begin; i < operators.end; ++i)
        if (!op(i).parameters.empty())
            for (const Index tensor : saved(info(i))) lowest_saver_[tensor] = -2;
}

void StageLiveness::run_backward(bool is_split) {
    lowest_first_ = lowest_saver_;
    for (std::size_t u = units_.size(); u-- > 0;) {
        const model::OperatorRange unit = units_[u];
        if (unit_is_recomputed_[u]) run_again(unit, unit, is_split);
        if (is_split) keep_for_weights(unit);
        run_unit_backward(u, is_split);
        // The inputs from which a unit was recomputed go when the lowest unit that reads them is done.
        if (unit_is_recomputed_[u])
            for_each_wanted(unit, [&](Index tensor) {
                if (is_saved_[tensor] && lowest_saver_[tensor] == unit.begin && !is_overwritten_[tensor])
                    release(tensor);
            });
    }
    lowest_saver_ = lowest_first_;
}

StageLiveness::BoundaryBytes StageLiveness::boundary_bytes() const {
    BoundaryBytes result;
    result.saved = saved_contexts_;
    for (const std::int32_t i : core::indices(is_saved_)) {
        const auto tensor = i;
        if (is_saved_[i]) result.saved += bytes(tensor);
        if (is_received_[i]) {
            (is_saved_[i] ? result.received_saved : result.received) += bytes(tensor);
            result.sent_gradient += bytes(tensor);
        }
        if (is_sent_[i]) {
            if (!is_saved_[i]) result.sent += bytes(tensor);
            result.received_gradient += bytes(tensor);
        }
    }
    return result;
}

void StageLiveness::find_forward(const BoundaryBytes& boundary, ActivationFootprint& result) {
    // Tensors from the stage before and from the data loader are held at the start.
    std::vector<char> kept = is_saved_;
    for (const std::int32_t i : core::indices(kept)) {
        if (is_sent_[i]) kept[i] = 1;
        const model::OperatorId producer = graph_.tensors[i].producer;
        const bool is_data = graph_.op(producer).kind == OperatorKind::input &&
                             producer.index < stage_.begin && last_use_[i] >= 0;
        if (is_received_[i] || is_data) hold(i);
    }
    for (std::size_t u = 0; u < units_.size(); ++u)
        run_forward(units_[u], kept, last_use_, !is_forward_only_ && !unit_is_recomputed_[u], false);
    result.saved = core::Bytes(boundary.saved);
    result.received = core::Bytes(boundary.received);
    result.received_saved = core::Bytes(boundary.received_saved);
    result.sent = core::Bytes(boundary.sent);
    result.forward_transient =
        core::Bytes(std::max(0.0, peak_ - boundary.saved - boundary.received - boundary.sent));
    // Tensors that leave during forward are not held at the peak: the other memory is counted beside the
    // saved tensors that are held at each moment.
    if (plan_.offload != Offload::none)
        result.forward_transient =
            core::Bytes(std::max(0.0, beside_saved_ - boundary.received - boundary.sent));
}

void StageLiveness::begin_backward() {
    std::fill(is_held_.begin(), is_held_.end(), 0);
    std::fill(has_gradient_held_.begin(), has_gradient_held_.end(), 0);
    const double left_by_later = graph_.part.is_last() ? 0 : key_values_;
    held_ = saved_contexts_ + left_by_later;
    saved_held_ = saved_contexts_;
    for (const std::int32_t i : core::indices(is_saved_)) {
        if (is_saved_[i]) hold(i);
        if (is_sent_[i]) {
            has_gradient_held_[i] = 1;
            held_ += bytes(i);
        }
    }
    peak_ = held_;
    beside_saved_ = held_ - saved_held_;
}

void StageLiveness::find_whole_backward(const BoundaryBytes& boundary, ActivationFootprint& result) {
    begin_backward();
    run_backward(false);
    const double left_by_later = graph_.part.is_last() ? 0 : key_values_;
    const double left_for_earlier = graph_.part.is_last() ? graph_.part.index * key_values_ : 0;
    // Gradients for the sequence before reuse the memory that is freed while they grow.
    const double together = boundary.saved + left_by_later + left_for_earlier + boundary.received_gradient +
                            boundary.sent_gradient;
    result.backward_transient = core::Bytes(std::max(0.0, peak_ - together));
    result.key_value_gradient = core::Bytes(key_values_);
    result.reused = core::Bytes(std::clamp(
        together - peak_, 0.0, std::min(left_for_earlier, boundary.saved - boundary.received_saved)));
    if (plan_.offload != Offload::none) {
        result.backward_transient =
            core::Bytes(std::max(0.0, beside_saved_ - boundary.received_gradient - boundary.sent_gradient));
        for (std::size_t u = 0; u < units_.size(); ++u)
            result.offloadable.push_back({units_[u], offloadable(u, false), {}});
    }
}

void StageLiveness::find_split_backward(const BoundaryBytes& boundary, ActivationFootprint& result) {
    begin_backward();
    run_backward(true);
    // Held now: saved tensors that backward_weight reads, recomputed ones, kept output gradients and the
    // gradients for the stage before.
    double saved_for_weight = 0;
    for (const std::int32_t i : core::indices(is_saved_))
        if (is_saved_[i] && is_held_[i]) saved_for_weight += bytes(i);
    for (std::size_t u = 0; u < units_.size(); ++u)
        for (Index i = units_[u].begin; i < units_[u].end; ++i)
            if (!unit_is_recomputed_[u] && !op(i).parameters.empty())
                saved_for_weight += info(i).saved_context - info(i).recomputable;
    double kept_for_weight = std::max(0.0, held_ - saved_for_weight - boundary.sent_gradient);
    if (plan_.offload != Offload::none) {
        // Saved tensors held at each moment are counted apart, so nothing reuses their memory.
        for (std::size_t u = 0; u < units_.size(); ++u)
            result.offloadable[u].for_weight = offloadable(u, true);
        peak_ = boundary.saved + std::max(beside_saved_, kept_for_weight + boundary.received_gradient +
                                                             boundary.sent_gradient);
    }
    const double together =
        boundary.saved + kept_for_weight + boundary.received_gradient + boundary.sent_gradient;
    const double reused =
        std::clamp(together - peak_, 0.0, std::min(kept_for_weight, boundary.saved - saved_for_weight));
    saved_for_weight += reused;
    kept_for_weight -= reused;
    result.saved_for_weight = core::Bytes(saved_for_weight);
    result.kept_for_weight = core::Bytes(kept_for_weight);
    result.input_transient = core::Bytes(std::max(0.0, peak_ - (together - reused)));
    double gathered = 0;  // sequence parallelism: one gathered input at a time
    for (Index i = stage_.begin; i < stage_.end; ++i)
        if (model::gathers_tokens(op(i), context_)) gathered = std::max(gathered, bytes(op(i).output.index));
    double own = 0;
    if (workspace_)
        for (Index i = stage_.begin; i < stage_.end; ++i)
            own = std::max(own, model::kernel_workspace(graph_, model::OperatorId(i),
                                                        model::Phase::backward_weight, context_, *workspace_)
                                    .value);
    result.weight_transient = core::Bytes(gathered + own);
}

ActivationFootprint StageLiveness::footprint() {
    ActivationFootprint result;
    const BoundaryBytes boundary = boundary_bytes();
    find_forward(boundary, result);
    if (is_forward_only_) return result;
    result.received_gradient = core::Bytes(boundary.received_gradient);
    result.sent_gradient = core::Bytes(boundary.sent_gradient);
    find_whole_backward(boundary, result);
    find_split_backward(boundary, result);
    return result;
}

}  // namespace schedule
