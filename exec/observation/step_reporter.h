// Brings to rank 0 what only the last stage knows, and tells the run's observer.
#pragma once

#include <cstdint>
#include <optional>

#include "core/units.h"
#include "exec/observation/run_observer.h"
#include "exec/runtime/run.h"
#include "exec/transport/communicator.h"
#include "schedule/program/program.h"

namespace exec {

// One a rank of an observed run; every rank makes the same calls.
class StepReporter {
public:
    // All arguments outlive it.
    StepReporter(const schedule::Program& program, const RunOptions& options, Communicator& communicator);

    // `report`: as far as this rank knows it; `loss` and its held-out loss nothing without the last stage.
    void tell(StepReport report, const std::optional<double>& loss);
    // The newest checkpoint that is committed, if any is.
    void tell_checkpoint(const std::optional<std::int64_t>& committed);

private:
    const RunOptions& options_;
    Communicator& communicator_;
    int teller_ = 0;  // the first rank that knows the loss
    std::optional<std::int64_t> told_checkpoint_;
};

}  // namespace exec
