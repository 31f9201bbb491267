#include "schedule/pass/rank/offload.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"

namespace schedule {

OffloadedActivations::OffloadedActivations(const Plan& plan, const std::vector<Action>& actions,
                                           int micro_batches, std::vector<Stage> stages,
                                           InstructionList& list, Frontier& frontier)
    : plan_(plan), stages_(std::move(stages)), list_(list), frontier_(frontier) {
    std::size_t rows = 0;
    for (const Stage& stage : stages_) {
        first_row_.push_back(rows);
        rows += micro_batches * stage.units->size();
    }
    units_.resize(rows);
    for (const Action& action : actions) {
        const bool is_forward = action.kind == ActionKind::forward;
        if (!is_forward && !is_backward_part(action.kind)) continue;
        const std::int32_t units = core::count_of(*of(action.stage).units);
        for (std::int32_t i = 0; i < units; ++i) {
            const Task task{action.stage, action.micro_batch, is_forward ? i : units - 1 - i, action.kind};
            Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
            if (is_forward) entry.forward = std::ssize(tasks_);
            if (task.reads_first()) entry.backward = std::ssize(tasks_);
            tasks_.push_back(task);
        }
    }
    for (const Task& task : tasks_) {
        Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
        const core::Bytes bytes = (*of(task.stage).units)[task.unit].bytes;
        entry.leaves =
            bytes.value > 0 && leaves(entry.forward, entry.backward, plan_.activation_loading_horizon);
    }
}

const OffloadedActivations::Stage& OffloadedActivations::of(std::int32_t stage) const {
    const auto found =
        std::find_if(stages_.begin(), stages_.end(), [&](const Stage& own) { return own.index == stage; });
    core::require(found != stages_.end(), "a pass runs a stage of its rank");
    return *found;
}

std::size_t OffloadedActivations::row_of(std::int32_t stage, std::int32_t micro_batch,
                                         std::int32_t unit) const {
    const Stage& own = of(stage);
    return first_row_[&own - stages_.data()] + micro_batch * own.units->size() + unit;
}

OffloadedActivations::Leaving OffloadedActivations::leaving(std::int32_t stage,
                                                            std::int32_t micro_batch) const {
    Leaving sum;
    const Stage& own = of(stage);
    for (const std::int32_t unit : core::indices(*own.units)) {
        if (!units_[row_of(stage, micro_batch, unit)].leaves) continue;
        sum.all += (*own.units)[unit].bytes;
        sum.for_weight += for_weight(own, unit);
    }
    return sum;
}

std::uint32_t OffloadedActivations::append_copy(const Stage& stage, std::int32_t micro_batch,
                                                std::int32_t unit, bool loads) {
    const ActivationFootprint::UnitSaved& saved = (*stage.units)[unit];
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
    list_.wait_for(frontier_.last_step);
    return list_.append(copy);
}

void OffloadedActivations::begin_unit(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
    ++task_;
    const std::int64_t ahead = task_ + plan_.activation_loading_horizon;
    if (ahead < std::ssize(tasks_)) load(tasks_[ahead]);
    Unit& entry = unit_of(stage, micro_batch, unit);
    if (!entry.leaves) return;
    const ActionKind pass = tasks_[task_].pass;
    if (pass != ActionKind::forward) {
        frontier_.pending.push_back(entry.loaded);
        if (pass != ActionKind::backward_weight) loaded_.push_back(entry.loaded_for_input);
        if (pass != ActionKind::backward_input) loaded_.push_back(entry.loaded_for_weight);
    } else {
        entry.buffer = list_.buffer(MemoryKind::activations, (*of(stage).units)[unit].bytes);
        list_.take(entry.buffer);
    }
}

void OffloadedActivations::store(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
    Unit& entry = unit_of(stage, micro_batch, unit);
    if (!entry.leaves) return;
    list_.give_back(entry.buffer);
    entry.stored = append_copy(of(stage), micro_batch, unit, false);
}

void OffloadedActivations::end_unit() {
    for (const std::uint32_t buffer : loaded_) list_.give_back(buffer);
    loaded_.clear();
}

void OffloadedActivations::load(const Task& task) {
    Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
    if (!task.reads_first() || !entry.leaves) return;
    const Stage& stage = of(task.stage);
    const core::Bytes weight = for_weight(stage, task.unit), all = (*stage.units)[task.unit].bytes;
    entry.loaded_for_input = list_.buffer(MemoryKind::activations, all - weight);
    entry.loaded_for_weight = list_.buffer(MemoryKind::activations, weight);
    list_.take(entry.loaded_for_input);
    list_.take(entry.loaded_for_weight);
    list_.wait_for(entry.stored);
    entry.loaded = append_copy(stage, task.micro_batch, task.unit, true);
}

}  // namespace schedule
