// Offload. The saved tensors of a unit are copied to the host or to disk on the copy stream as soon as the
// unit's forward has ended. They are loaded `activation_loading_horizon` tasks before the unit's backward; of
// a split backward, before backward_input. The tensors that backward_weight reads then stay until it has
// ended. A unit whose saved tensors would be loaded right after the copy out keeps them (memory.h, leaves).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pass/rank/frontier.h"
#include "schedule/plan/memory.h"
#include "schedule/schedule.h"

namespace schedule {

class OffloadedActivations {
public:
    // A virtual stage of the rank, with what each of its units saves.
    struct Stage {
        std::int32_t index = 0;
        const std::vector<ActivationFootprint::UnitSaved>* units = nullptr;
        bool splits_backward = false;
    };
    // `actions` of the rank. `list` and `frontier` outlive it.
    OffloadedActivations(const Plan& plan, const std::vector<Action>& actions, int micro_batches,
                         std::vector<Stage> stages, InstructionList& list, Frontier& frontier);

    struct Leaving {
        core::Bytes all, for_weight;  // the second a part of the first
    };
    Leaving leaving(std::int32_t stage, std::int32_t micro_batch) const;

    // Called by the rank's passes, in their order, as each begins a unit, has computed it and ends it.
    void begin_unit(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit);
    void store(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit);
    void end_unit();

private:
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

    const Stage& of(std::int32_t stage) const;
    std::size_t row_of(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) const;
    Unit& unit_of(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit) {
        return units_[row_of(stage, micro_batch, unit)];
    }
    core::Bytes for_weight(const Stage& stage, std::int32_t unit) const {
        return stage.splits_backward ? (*stage.units)[unit].for_weight : core::Bytes(0);
    }
    void load(const Task& task);
    std::uint32_t append_copy(const Stage& stage, std::int32_t micro_batch, std::int32_t unit, bool loads);

    const Plan& plan_;
    const std::vector<Stage> stages_;
    InstructionList& list_;
    Frontier& frontier_;
    std::vector<std::size_t> first_row_;  // by position in stages_
    std::vector<Unit> units_;             // [stage of the rank][micro-batch][unit], flat
    std::vector<Task> tasks_;
    std::int64_t task_ = -1;             // the latest begun
    std::vector<std::uint32_t> loaded_;  // buffers that the unit at work frees at its end
};

}  // namespace schedule
