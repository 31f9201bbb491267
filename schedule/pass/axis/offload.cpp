// Offload. The saved tensors of a unit are copied to the host or to disk on the copy stream as soon as the
// unit's forward has ended. They are loaded `activation_loading_horizon` tasks before the unit's backward; of
// a split backward, before backward_input. The tensors that backward_weight reads then stay until it has
// ended. A unit whose saved tensors would be loaded right after the copy out keeps them (memory.h, leaves).
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class OffloadedActivations : public LoweringPass {
public:
    explicit OffloadedActivations(RankDraft& draft) : LoweringPass(draft) {
        if (!draft.trains()) return;
        find_units();
        find_tasks();
        for (const Task& task : tasks_) {
            Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
            const core::Bytes bytes = of(task.stage).units()[task.unit].bytes;
            entry.leaves = bytes.value > 0 &&
                           leaves(entry.forward, entry.backward, draft.plan.activation_loading_horizon);
        }
    }

    void enter_unit(RecipeDraft& recipe, std::int32_t unit) override {
        recipe.append({{this, begin_unit, unit}});
    }
    void leave_unit(RecipeDraft& recipe, std::int32_t unit) override {
        if (recipe.is_forward()) recipe.append({{this, store, unit}});
    }
    // The last step that works of each unit gives back what was loaded for it.
    void finish(RecipeDraft& recipe) override {
        bool is_given_back = false;
        Recipe& steps = recipe.steps();
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            if (step->works() && !is_given_back) step->hooks.push_back({this, end_unit});
            if (step->works()) is_given_back = true;
            for (const Hook& hook : step->hooks)
                if (hook.pass == this && hook.what == begin_unit) is_given_back = false;
        }
    }

    void begin_pass(StagePass& pass) override {
        if (pass.phase != ComputePhase::forward || !draft_.trains()) return;
        const Stage& own = of(pass.stage.index);
        for (const std::int32_t unit : core::indices(own.units())) {
            if (!units_[row_of(own.index, pass.micro_batch, unit)].leaves) continue;
            pass.leaves += own.units()[unit].bytes;
            pass.leaves_for_weight += for_weight(own, unit);
        }
    }

    void perform(const Hook& hook, const StagePass& pass) override {
        if (!draft_.trains()) return;
        switch (What{hook.what}) {
            case begin_unit: return begin(pass.stage.index, pass.micro_batch, *hook.unit);
            case store: return copy_out(pass.stage.index, pass.micro_batch, *hook.unit);
            case end_unit:
                for (const std::uint32_t buffer : loaded_) draft_.list.give_back(buffer);
                loaded_.clear();
                return;
        }
    }

private:
    enum What : std::uint8_t { begin_unit, store, end_unit };

    // A virtual stage of the rank, with what each of its units saves.
    struct Stage {
        std::int32_t index = 0;
        const std::vector<ActivationFootprint>* footprints = nullptr;
        bool splits_backward = false;
        std::size_t first_row = 0;
        const std::vector<ActivationFootprint::UnitSaved>& units() const {
            return footprints->front().offloadable;
        }
    };
    // Tasks are passes of micro-batches through units, in the rank's order.
    struct Task {
        std::int32_t stage = 0, micro_batch = 0, unit = 0;
        ActionKind pass = ActionKind::forward;
        bool reads_first() const {
            return pass == ActionKind::backward || pass == ActionKind::backward_input;
        }  // ... the tensors that left
    };
    struct Unit {
        std::int64_t forward = -1, backward = -1;  // tasks
        bool leaves = false;
        std::uint32_t buffer = no_buffer, stored = no_instruction;  // before it leaves
        // After the load: buffers freed with the first backward pass, and with the last.
        std::uint32_t loaded = no_instruction;
        std::uint32_t loaded_for_input = no_buffer, loaded_for_weight = no_buffer;
    };

    void find_units() {
        std::size_t rows = 0;
        for (const RankDraft::Stage& stage : draft_.stages) {
            stages_.push_back({stage.index, stage.footprints, stage.splits_backward, rows});
            rows += draft_.order.micro_batches * stages_.back().units().size();
        }
        units_.resize(rows);
    }
    void find_tasks() {
        for (const Action& action : draft_.actions()) {
            const bool is_forward = action.kind == ActionKind::forward;
            if (!is_forward && !is_backward_part(action.kind)) continue;
            const std::int32_t units = core::count_of(of(action.stage).units());
            for (std::int32_t i = 0; i < units; ++i) {
                const Task task{action.stage, action.micro_batch, is_forward ? i : units - 1 - i,
                                action.kind};
                Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
                if (is_forward) entry.forward = std::ssize(tasks_);
                if (task.reads_first()) entry.backward = std::ssize(tasks_);
                tasks_.push_back(task);
            }
        }
    }

    const Stage& of(std::int32_t stage) const {
        const auto found = std::find_if(stages_.begin(), stages_.end(),
                                        [&](const Stage& own) { return own.index == stage; });
        core::require(found != stages_.end(), "a pass runs a stage of its rank");
        return *found;
    }
    std::size_t row_of(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) const {
        const Stage& own = of(stage);
        return own.first_row + micro_batch * own.units().size() + unit;
    }
    Unit& unit_of(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
        return units_[row_of(stage, micro_batch, unit)];
    }
    static core::Bytes for_weight(const Stage& stage, std::int32_t unit) {
        return stage.splits_backward ? stage.units()[unit].for_weight : core::Bytes(0);
    }

    std::uint32_t append_copy(const Stage& stage, std::int32_t micro_batch, std::int32_t unit, bool loads) {
        const ActivationFootprint::UnitSaved& saved = stage.units()[unit];
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
        draft_.list.wait_for(draft_.frontier.last_step);
        return draft_.list.append(copy);
    }

    void begin(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
        ++task_;
        const std::int64_t ahead = task_ + draft_.plan.activation_loading_horizon;
        if (ahead < std::ssize(tasks_)) load(tasks_[ahead]);
        Unit& entry = unit_of(stage, micro_batch, unit);
        if (!entry.leaves) return;
        const ActionKind pass = tasks_[task_].pass;
        if (pass != ActionKind::forward) {
            draft_.frontier.pending.push_back(entry.loaded);
            if (pass != ActionKind::backward_weight) loaded_.push_back(entry.loaded_for_input);
            if (pass != ActionKind::backward_input) loaded_.push_back(entry.loaded_for_weight);
        } else {
            entry.buffer = draft_.list.buffer(MemoryKind::activations, of(stage).units()[unit].bytes);
            draft_.list.take(entry.buffer);
        }
    }

    void copy_out(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
        Unit& entry = unit_of(stage, micro_batch, unit);
        if (!entry.leaves) return;
        draft_.list.give_back(entry.buffer);
        entry.stored = append_copy(of(stage), micro_batch, unit, false);
    }

    void load(const Task& task) {
        Unit& entry = unit_of(task.stage, task.micro_batch, task.unit);
        if (!task.reads_first() || !entry.leaves) return;
        const Stage& stage = of(task.stage);
        const core::Bytes weight = for_weight(stage, task.unit), all = stage.units()[task.unit].bytes;
        entry.loaded_for_input = draft_.list.buffer(MemoryKind::activations, all - weight);
        entry.loaded_for_weight = draft_.list.buffer(MemoryKind::activations, weight);
        draft_.list.take(entry.loaded_for_input);
        draft_.list.take(entry.loaded_for_weight);
        draft_.list.wait_for(entry.stored);
        entry.loaded = append_copy(stage, task.micro_batch, task.unit, true);
    }

    std::vector<Stage> stages_;
    std::vector<Unit> units_;  // [stage of the rank][micro-batch][unit], flat
    std::vector<Task> tasks_;
    std::int64_t task_ = -1;             // the latest begun
    std::vector<std::uint32_t> loaded_;  // buffers that the unit at work frees at its end
};

}  // namespace

std::unique_ptr<LoweringPass> offload(RankDraft& draft) {
    if (draft.plan.offload == Offload::none) return nullptr;
    return std::make_unique<OffloadedActivations>(draft);
}

}  // namespace schedule
