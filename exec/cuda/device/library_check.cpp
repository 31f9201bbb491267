#include "exec/cuda/device/library_check.cuh"

#include <fmt/core.h>

#include "core/errors.h"

namespace exec::cuda {

namespace {

[[noreturn]] void fail(const char* call, const char* file, int line, const std::string& words) {
    int device = -1;
    cudaGetDevice(&device);
    throw core::MachineError(
        fmt::format("{} failed on device {} at {}:{}: {}", call, device, file, line, words));
}

}  // namespace

void check(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(call, file, line,
             fmt::format("{} ({})", cublasLtGetStatusName(status), cublasLtGetStatusString(status)));
}

void check(cudnnStatus_t status, const char* call, const char* file, int line) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    char last[512] = "";
    cudnnGetLastErrorString(last, sizeof last);
    fail(call, file, line, fmt::format("{} ({})", cudnnGetErrorString(status), last));
}

void check(ncclResult_t status, const char* call, const char* file, int line) {
    if (status != ncclSuccess)
        fail(call, file, line, fmt::format("{} ({})", ncclGetErrorString(status), ncclGetLastError(nullptr)));
}

}  // namespace exec::cuda
