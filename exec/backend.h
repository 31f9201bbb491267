// What a rank's interpreter needs of the hardware it drives, concern by concern: memory, arithmetic, order
// and clocks, updates and exchange. exec/cpu performs every call before it returns; exec/cuda puts it on the
// stream of the instruction at work and returns at once.
#pragma once

#include <string>
#include <vector>

#include "exec/backend/operator_kernels.h"
#include "exec/backend/parameter_updates.h"
#include "exec/backend/rank_arrays.h"
#include "exec/backend/rank_exchange.h"
#include "exec/backend/step_control.h"
#include "model/segment.h"

namespace exec {

// Calls of every concern belong to the instruction that StepControl began last.
class Backend : public StepControl,
                public RankArrays,
                public ParameterUpdates,
                public StepLoss,
                public RankExchange {
public:
    virtual const OperatorKernels& operators() const = 0;
};

struct StagePlan;
class InputReader;

// What a backend may want to know of the run it serves. Everything outlives it.
struct BackendRequest {
    const schedule::Program& program;
    const model::ModelGraph& graph;
    const InputReader& inputs;
    const RunOptions& options;
    Communicator& communicator;
    const model::SegmentGraphs& graphs;  // of what passes at once
    const std::vector<StagePlan>& stage_plans;
    const std::vector<std::string>& activities;  // by instruction of this rank's list
};

}  // namespace exec
