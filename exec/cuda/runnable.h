// What the CUDA backend refuses, in words, before anything is allocated.
#pragma once

#include "core/diagnostics_fwd.h"
#include "exec/cuda/device/device.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec::cuda {

// `device`: what the plan is to run on; what is not known of it is not held against the plan.
void check_runnable(const schedule::Plan& plan, const model::ModelGraph& graph, const DeviceReport& device,
                    core::Diagnostics& diagnostics);

}  // namespace exec::cuda
