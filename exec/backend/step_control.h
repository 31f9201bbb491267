// The step of a rank as its backend sees it: instructions begin and end in list order, and their times are
// known when the step is over.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "exec/runtime/run.h"
#include "model/operators/cost.h"

namespace exec {

using Clock = std::chrono::steady_clock;

struct InstructionTime {
    std::uint32_t instruction = 0;
    Clock::time_point start, end;
    core::Seconds on_core;  // of start to end, when the thread had a core; zero where it is not measured
};

class StepControl {
public:
    virtual ~StepControl() = default;

    // Between begin_step and end_step, in list order: every call belongs to the instruction begun last. A
    // backend that can perform the whole step by itself, as it was performed before, does so in begin_step
    // and says true: then nothing else is called but end_step.
    virtual bool begin_step(std::int64_t step) = 0;
    // The same for a batch of held-out data, which only goes forward.
    virtual bool begin_evaluation(std::int64_t batch) { return begin_step(batch); }
    virtual void begin(std::uint32_t instruction) = 0;
    virtual void end(std::uint32_t instruction) = 0;
    // Waits for the step; appends the times of its instructions, in list order.
    virtual void end_step(std::vector<InstructionTime>& times) = 0;

    // RunOptions::times_operators: from the end of the operator before it (or begin_operators), so that
    // nothing between operators is lost.
    virtual void begin_operators(std::int32_t segment) = 0;  // of the sequence
    virtual void end_operator(std::int32_t op, model::Phase phase) = 0;
    virtual std::vector<OperatorSample>& operator_samples() = 0;

    // After the first step: what was chosen, each choice once.
    virtual std::vector<KernelChoice> kernel_choices() const { return {}; }

    // The rank gives up: no array of its step is used any more when this returns. Never throws.
    virtual void settle() {}

    // Time in instructions that compute, by the clock and on a core or device.
    virtual core::Seconds computing() const = 0;
    virtual core::Seconds on_core() const = 0;
};

}  // namespace exec
