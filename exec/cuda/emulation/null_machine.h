// A machine that does nothing: planning performs a step on it to learn what memory the step takes and what
// uses it.
#pragma once

#include <memory>

#include "exec/cuda/machine.h"

namespace exec::cuda {

// `fuses_attention`: does the machine that is planned for have cuDNN's fused attention for this shape?
std::unique_ptr<Machine> make_null_machine(const Machine& like);
std::unique_ptr<Exchange> make_null_exchange();

}  // namespace exec::cuda
