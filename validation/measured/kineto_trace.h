// A trace of torch.profiler (Kineto's Chrome trace) as one measured step.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "validation/measured/measured_step.h"

namespace validation {

// The kind of a GPU kernel by its name, as cuBLAS, cuDNN, CUTLASS, NCCL, PyTorch, Triton, Apex and
// Transformer Engine name theirs.
StepKind kind_of_kernel(const std::string& name);
// The kind of an operator of PyTorch ("aten::addmm"); nothing where others inside it are the work.
std::optional<StepKind> kind_of_operator(const std::string& name);

// `document` is the trace's JSON. Kernels, copies and fills of GPUs (`kernel`, `gpu_memcpy`, `gpu_memset`)
// where there are any, else the outermost operators of a known kind (`cpu_op`). Diagnosed: no traceEvents,
// another schemaVersion, no ProfilerStep, steps without work, events without a time, devices of several
// ranks.
std::optional<MeasuredStep> read_kineto_trace(const core::Value& document, const std::string& file,
                                              core::Diagnostics& diagnostics);

}  // namespace validation
