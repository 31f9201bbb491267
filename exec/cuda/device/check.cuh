// Every CUDA call goes through check(): a failure names the call, the place and CUDA's own words. For .cu
// files.
#pragma once

#include <cuda_runtime.h>

namespace exec::cuda {

// Throws core::MachineError("CALL failed on device D at FILE:LINE: NAME (TEXT)").
void check(cudaError_t status, const char* call, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

}  // namespace exec::cuda
