// Offload. The saved tensors of a unit are copied to the host or to disk on the copy stream as soon as the
// unit's forward has ended. They are loaded `activation_loading_horizon` tasks before the unit's backward; of
// a split backward, before backward_input. The tensors that backward_weight reads then stay until it has
// ended. A unit whose saved tensors would be loaded right after the copy out keeps them (memory.h, leaves).
#include <algorithm>

#include "core/index/integers.h"
#include "schedule/pass/rank_lowering.h"

namespace schedule {

void RankLowering::plan_offload() {
    if (!graph_ || !trains_ || plan_.offload == Offload::none) return;
    offloaded_.resize(stages_.size());
    for (std::size_t s = 0; s < stages_.size(); ++s)
        offloaded_[s].resize(order_.micro_batches * stages_[s].footprints->front().offloadable.size());
    for (const Action& action : order_.actions[rank_]) {
        const bool is_forward = action.kind == ActionKind::forward;
        if (!is_forward && action.kind != ActionKind::backward && action.kind != ActionKind::backward_input &&
            action.kind != ActionKind::backward_weight)
            continue;
        const auto units = core::count_of(local(action.stage).footprints->front().offloadable);
        for (std::int32_t i = 0; i < units; ++i) {
            const UnitTask task{action.stage, action.micro_batch, is_forward ? i : units - 1 - i,
                                action.kind};
            OffloadedUnit& entry = offloaded(task.stage, task.micro_batch, task.unit);
            if (is_forward) entry.forward = unit_tasks_.size();
            if (task.reads_first()) entry.backward = unit_tasks_.size();
            unit_tasks_.push_back(task);
        }
    }
    for (const UnitTask& task : unit_tasks_) {
        OffloadedUnit& entry = offloaded(task.stage, task.micro_batch, task.unit);
        const core::Bytes bytes = local(task.stage).footprints->front().offloadable[task.unit].bytes;
        entry.leaves =
            bytes.value > 0 && leaves(entry.forward, entry.backward, plan_.activation_loading_horizon);
    }
}

RankLowering::OffloadedUnit& RankLowering::offloaded(std::int32_t stage, std::int32_t micro_batch,
                                                     std::int32_t unit) {
    const std::int32_t s = local_of_[stage];
    return offloaded_[s][micro_batch * stages_[s].footprints->front().offloadable.size() + unit];
}

core::Bytes RankLowering::for_weight(const LocalStage& stage, std::int32_t unit) {
    return stage.splits_backward ? stage.footprints->front().offloadable[unit].for_weight : core::Bytes(0);
}

RankLowering::Offloaded RankLowering::offloaded_bytes(const LocalStage& stage, std::int32_t micro_batch) {
    Offloaded sum;
    if (offloaded_.empty()) return sum;
    for (const std::int32_t u : core::indices(stage.footprints->front().offloadable)) {
        const auto unit = u;
        if (!offloaded(stage.index, micro_batch, unit).leaves) continue;
        sum.all += stage.footprints->front().offloadable[u].bytes;
        sum.for_weight += for_weight(stage, unit);
    }
    return sum;
}

std::uint32_t RankLowering::append_copy(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit,
                                        bool loads) {
    const ActivationFootprint::UnitSaved& saved = stage.footprints->front().offloadable[unit];
    Instruction copy;
    copy.kind = InstructionKind::copy;
    copy.stream = Stream::copy;
    copy.phase = loads ? ComputePhase::backward : ComputePhase::forward;
    copy.payload = PayloadKind::activation;
    copy.stage = stage.index;
    copy.micro_batch = micro_batch;
    copy.operators = saved.operators;
    copy.loads = loads;
    copy.bytes = saved.bytes;
    list_.wait_for(last_step_);
    return list_.append(copy);
}

void RankLowering::begin_unit(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit) {
    if (offloaded_.empty()) return;
    ++unit_task_;
    const std::int64_t ahead = unit_task_ + plan_.activation_loading_horizon;
    if (ahead < std::ssize(unit_tasks_)) load(unit_tasks_[ahead]);
    OffloadedUnit& entry = offloaded(stage.index, micro_batch, unit);
    if (!entry.leaves) return;
    const ActionKind pass = unit_tasks_[unit_task_].pass;
    if (pass != ActionKind::forward) {
        pending_.push_back(entry.loaded);
        if (pass != ActionKind::backward_weight) loaded_.push_back(entry.loaded_for_input);
        if (pass != ActionKind::backward_input) loaded_.push_back(entry.loaded_for_weight);
    } else {
        entry.buffer =
            list_.buffer(MemoryKind::activations, stage.footprints->front().offloadable[unit].bytes);
        list_.take(entry.buffer);
    }
}

void RankLowering::store(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit) {
    if (offloaded_.empty()) return;
    OffloadedUnit& entry = offloaded(stage.index, micro_batch, unit);
    if (!entry.leaves) return;
    list_.give_back(entry.buffer);
    entry.stored = append_copy(stage, micro_batch, unit, false);
}

void RankLowering::load(const UnitTask& task) {
    OffloadedUnit& entry = offloaded(task.stage, task.micro_batch, task.unit);
    if (!task.reads_first() || !entry.leaves) return;
    const LocalStage& stage = local(task.stage);
    const core::Bytes weight = for_weight(stage, task.unit),
                      all = stage.footprints->front().offloadable[task.unit].bytes;
    entry.loaded_for_input = list_.buffer(MemoryKind::activations, all - weight);
    entry.loaded_for_weight = list_.buffer(MemoryKind::activations, weight);
    list_.take(entry.loaded_for_input);
    list_.take(entry.loaded_for_weight);
    list_.wait_for(entry.stored);
    entry.loaded = append_copy(stage, task.micro_batch, task.unit, true);
}

bool RankLowering::is_last_of_unit(const StepGroup& group, std::size_t step) {
    for (std::size_t i = step + 1; i < group.steps.size(); ++i) {
        if (group.steps[i].works()) return false;
        if (group.steps[i].kind == Step::Kind::unit) return true;
    }
    return true;
}

}  // namespace schedule
