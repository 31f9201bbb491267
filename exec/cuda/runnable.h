// What the CUDA backend refuses, in words, before anything is allocated.
#pragma once

#include "core/diagnostics.h"
#include "model/model_graph.h"
#include "schedule/program.h"

namespace exec::cuda {

void check_runnable(const schedule::Plan& plan, const model::ModelGraph& graph, core::Diagnostics& diagnostics);

}  // namespace exec::cuda
