// Who watches a run while it goes on.
#pragma once

#include <cstdint>
#include <optional>

#include "core/units.h"
#include "exec/backend/loss_scaling.h"

namespace exec {

struct StepReport {
    std::int64_t step = 0;  // so many are completed
    double loss = 0;        // mean over the global batch
    double learning_rate = 0;
    std::optional<double> gradient_norm;      // of all gradients before clipping; with clipping alone
    std::optional<LossScaling> loss_scaling;  // after the step; of plans in fp16
    core::Seconds time;                       // from the step's begin to its end on rank 0
    std::optional<double> held_out_loss;      // where an evaluation followed
};

// Called on rank 0, in the thread that performs its steps: what takes long here is waited for by all.
class RunObserver {
public:
    virtual ~RunObserver() = default;
    virtual void step(const StepReport& report) = 0;
    virtual void checkpoint_written(std::int64_t step) = 0;
};

}  // namespace exec
