// Our GPU kernels executed on the host, thread by thread: what tests compare with the CPU's kernels where
// there is no GPU. Slow.
#pragma once

#include "exec/cuda/kernels.h"

namespace exec::cuda {

const Kernels& emulated_kernels();

}  // namespace exec::cuda
