// Every call of a library goes through one of these: a failure names the call, the place and the library's
// own words. For files of this folder.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>

namespace exec::cuda {

void check(cudaError_t status, const char* call, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(cublasStatus_t status, const char* call, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(cudnnStatus_t status, const char* call, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());
void check(ncclResult_t status, const char* call, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

}  // namespace exec::cuda
