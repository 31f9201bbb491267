#include "exec/runtime/stage_plan.h"

#include <algorithm>

#include "model/operators/rank_share.h"
#include "schedule/pass/recompute.h"

namespace exec {

using model::OperatorKind;

namespace {

class Planner {
    template <class T>
    using ByTensor = StagePlan::ByTensor<T>;

public:
    Planner(const model::ModelGraph& graph, const schedule::Program& program, std::int32_t stage,
            bool is_forward_only, bool splits_backward)
        : graph_(graph),
          program_(program),
          plan_(program.plan),
          context_(program.plan.cost_context()),
          stage_(stage),
          info_(program.stages[stage]),
          is_forward_only_(is_forward_only) {
        result_.operators = info_.operators;
        result_.splits_backward = splits_backward;
        result_.plans.resize(info_.operators.size());
    }

    StagePlan make() {
        find_storages();
        mark(info_.sends, result_.is_sent);
        mark(info_.receives, result_.is_received);
        for (const model::TensorId id : graph_.tensors.ids())
            result_.is_overwritten[id] = !result_.is_sent[storage(id)] && !result_.is_received[storage(id)] &&
                                         model::gradient_overwrites(graph_, id, context_);
        const std::vector<model::OperatorRange> units = schedule::units_of(graph_, info_.operators);
        const std::vector<char> run_again = is_forward_only_
                                                ? std::vector<char>(units.size(), 0)
                                                : schedule::recomputed_units(graph_, units, plan_, stage_);
        std::vector<schedule::Rerun> reruns;
        if (!is_forward_only_)
            for (const model::OperatorRange unit : units)
                for (const schedule::Rerun& rerun : schedule::reruns(graph_, unit, plan_)) {
                    for (std::int32_t i = rerun.operators.begin; i < rerun.operators.end; ++i)
                        is_made_again_[storage(op(i).output)] = 1;
                    reruns.push_back(rerun);
                }
        for (const schedule::Rerun& rerun : reruns)
            for (std::int32_t i = rerun.operators.begin; i < rerun.operators.end; ++i)
                plan_of(i).is_recomputed = true;
        for (std::size_t u = 0; u < units.size(); ++u) plan_unit(units[u], run_again[u]);
        for (const schedule::Rerun& rerun : reruns) {
            save_inputs(rerun.operators);
            plan_recompute(rerun.operators, rerun.readers());
        }
        for (std::size_t u = 0; u < units.size(); ++u)
            if (run_again[u]) plan_recompute(units[u], units[u]);
        finish();
        if (plan_.offload != schedule::Offload::none)
            for (const model::OperatorRange unit : units) plan_offload(unit);
        result_.is_saved = is_saved_;
        return std::move(result_);
    }

private:
    const model::Operator& op(std::int32_t i) const { return graph_.operators[i]; }
    StagePlan::OperatorPlan& plan_of(std::int32_t i) { return result_.plans[i - info_.operators.begin]; }
    model::TensorId storage(model::TensorId tensor) const { return result_.storage[tensor]; }

    void find_storages() {
        const std::size_t tensors = graph_.tensors.size();
        result_.storage.resize(tensors);
        result_.gradient_storage.resize(tensors);
        result_.has_gradient.resize(tensors);
        result_.is_overwritten.assign(tensors, 0);
        result_.is_sent.assign(tensors, 0);
        result_.is_received.assign(tensors, 0);
        last_use_.assign(tensors, -1);
        last_use_in_unit_.assign(tensors, -1);
        is_saved_.assign(tensors, 0);
        is_kept_again_.assign(tensors, 0);
        is_made_again_.assign(tensors, 0);
        lowest_saver_.assign(tensors, -1);
        highest_saver_.assign(tensors, -1);
        lowest_again_.assign(tensors, -1);
        weights_need_.assign(tensors, 0);
        for (const model::TensorId id : graph_.tensors.ids()) {
            const model::Tensor& tensor = graph_.tensor(id);
            const model::Operator& producer = graph_.op(tensor.producer);
            const bool is_crossing =
                producer.kind == OperatorKind::parallel_enter || producer.kind == OperatorKind::parallel_exit;
            const bool is_view =
                model::is_view(producer.kind) || (is_crossing && !context_.sequence_parallel);
            result_.storage[id] = is_view ? storage(producer.inputs[0]) : id;
            // Beyond an enter each tensor-parallel rank has a part of the gradient; on this side, where other
            // operators contribute, the whole of it.
            const bool joins_parts = producer.kind == OperatorKind::parallel_enter &&
                                     context_.tensor_parallel > 1 &&
                                     graph_.tensor(producer.inputs[0]).consumers.size() > 1;
            result_.gradient_storage[id] =
                is_view && !joins_parts ? result_.gradient_storage[producer.inputs[0]] : id;
            result_.has_gradient[id] = model::has_gradient(graph_, id);
        }
        for (std::int32_t i = info_.operators.begin; i < info_.operators.end; ++i)
            for (const model::TensorId tensor : op(i).inputs) last_use_[storage(tensor)] = i;
    }

    void mark(core::OptionalIndex list, ByTensor<char>& marks) {
        if (!list) return;
        for (const model::TensorId tensor : program_.tensor_lists[*list]) marks[storage(tensor)] = 1;
    }

    // What backward of an operator reads: a gathered tensor is gathered again from its share.
    std::vector<model::TensorId> saved_by(const model::SavedForBackward& saved) const {
        std::vector<model::TensorId> result;
        for (const model::TensorId tensor : saved.tensors) {
            const model::Operator& producer = graph_.op(graph_.tensor(tensor).producer);
            result.push_back(
                storage(model::gathers_tokens(producer, context_) ? producer.inputs[0] : tensor));
        }
        return result;
    }

    static void lower(ByTensor<std::int32_t>& lowest, model::TensorId tensor, std::int32_t saver) {
        std::int32_t& value = lowest[tensor];
        value = value < 0 ? saver : std::min(value, saver);
    }

    void raise(model::TensorId tensor, std::int32_t saver) {
        std::int32_t& value = highest_saver_[tensor];
        value = std::max(value, saver);
    }

    void plan_offload(model::OperatorRange unit) {
        StagePlan::UnitPlan& own = result_.units.emplace_back();
        own.operators = unit;
        for (const model::TensorId t : is_saved_.ids()) {
            const bool is_of_unit = is_saved_[t] && lowest_saver_[t] >= unit.begin &&
                                    highest_saver_[t] < unit.end && last_use_[t] < unit.end;
            if (is_of_unit && !result_.is_received[t] && !result_.is_sent[t] &&
                graph_.op(graph_.tensors[t].producer).kind != OperatorKind::input)
                own.storages.push_back(t);
        }
    }

    void plan_unit(model::OperatorRange unit, bool again) {
        for (std::int32_t i = unit.begin; i < unit.end; ++i) {
            const model::SavedForBackward saved =
                model::saved_for_backward(graph_, model::OperatorId(i), context_);
            StagePlan::OperatorPlan& own = plan_of(i);
            own.saved_context_bytes = core::whole_bytes(saved.saved_context);
            own.late_context_bytes = core::whole_bytes(saved.late_context);
            own.is_recomputed = own.is_recomputed || again;
            own.is_recomputed_alone = !again && !is_forward_only_ && schedule::is_recomputed(op(i), plan_);
            own.drops_saved_context_after_forward =
                is_forward_only_ || own.is_recomputed ||
                (own.is_recomputed_alone && saved.recomputable_context.value > 0);
            if (is_forward_only_) continue;
            for (const model::TensorId tensor : saved_by(saved)) {
                if (!op(i).parameters.empty()) weights_need_[tensor] = 1;
                if (again || is_made_again_[tensor]) {
                    is_kept_again_[tensor] = 1;
                    lower(lowest_again_, tensor, i);
                } else {
                    is_saved_[tensor] = 1;
                    lower(lowest_saver_, tensor, i);
                    raise(tensor, i);
                }
            }
        }
        if (again) save_inputs(unit);
    }

    // Of operators that run again.
    void save_inputs(model::OperatorRange operators) {
        for (std::int32_t i = operators.begin; i < operators.end; ++i)
            for (const model::TensorId tensor : op(i).inputs)
                if (graph_.tensor(tensor).producer.index < operators.begin) {
                    is_saved_[storage(tensor)] = 1;
                    lower(lowest_saver_, storage(tensor), operators.begin);
                    raise(storage(tensor), operators.begin);
                }
    }

    // What operators that run again make and the backward of its readers does not read. What operators behind
    // those saved is there a second time: their backward is done with it, but for weights of a split
    // backward.
    void plan_recompute(model::OperatorRange operators, model::OperatorRange readers) {
        ByTensor<char> is_kept(graph_.tensors.size(), 0);
        for (std::int32_t i = readers.begin; i < readers.end; ++i)
            for (const model::TensorId tensor :
                 saved_by(model::saved_for_backward(graph_, model::OperatorId(i), context_)))
                is_kept[tensor] = 1;
        for (std::int32_t i = operators.begin; i < operators.end; ++i)
            for (const model::TensorId tensor : op(i).inputs) last_use_in_unit_[storage(tensor)] = i;
        for (std::int32_t i = operators.begin; i < operators.end; ++i) {
            const auto free_if_dead = [&](model::TensorId t) {
                const bool is_done = !is_saved_[t] || (lowest_saver_[t] >= readers.end &&
                                                       !(result_.splits_backward && weights_need_[t]));
                if (is_done && !is_kept[t] && last_use_in_unit_[t] <= i)
                    plan_of(i).free_after_recompute.push_back(t);
            };
            for (const model::TensorId tensor : op(i).inputs) free_if_dead(storage(tensor));
            free_if_dead(storage(op(i).output));
        }
    }

    void finish() {
        for (std::int32_t i = info_.operators.begin; i < info_.operators.end; ++i) {
            const auto free_if_dead = [&](model::TensorId t) {
                if (!is_saved_[t] && !result_.is_sent[t] && last_use_[t] <= i)
                    plan_of(i).free_after_forward.push_back(t);
            };
            for (const model::TensorId tensor : op(i).inputs) free_if_dead(storage(tensor));
            free_if_dead(storage(op(i).output));
        }
        for (const model::TensorId t : is_saved_.ids()) {
            const std::int32_t saver = is_saved_[t]        ? lowest_saver_[t]
                                       : is_kept_again_[t] ? lowest_again_[t]
                                                           : -1;
            if (saver < 0) continue;
            plan_of(saver).free_after_backward.push_back(t);
            if (!weights_need_[t]) plan_of(saver).free_after_input.push_back(t);
        }
    }

    const model::ModelGraph& graph_;
    const schedule::Program& program_;
    const schedule::Plan& plan_;
    const model::CostContext context_;
    const std::int32_t stage_;
    const schedule::StageInfo& info_;
    const bool is_forward_only_;
    StagePlan result_;
    ByTensor<std::int32_t> last_use_, last_use_in_unit_, lowest_saver_, highest_saver_, lowest_again_;
    ByTensor<char> is_saved_, is_kept_again_, weights_need_;
    ByTensor<char> is_made_again_;  // of a rerun
};

}  // namespace

StagePlan make_stage_plan(const model::ModelGraph& graph, const schedule::Program& program,
                          std::int32_t stage, bool is_forward_only, bool splits_backward) {
    return Planner(graph, program, stage, is_forward_only, splits_backward).make();
}

}  // namespace exec
