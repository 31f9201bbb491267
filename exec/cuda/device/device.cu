#include "exec/cuda/device/device.h"

#include <cstdlib>

#include "core/diagnostics.h"
#include "exec/cuda/device/check.cuh"

namespace exec::cuda {

namespace {

__global__ void empty_kernel() {}

// Before CUDA looks at it. Streams share the hardware's queues where there are fewer of them (8 by default,
// 32 at most), and what is first in a queue holds back what is behind it, of other streams too: a message
// that waits for its receiver must not hold back one of another stream (rendezvous.h).
void ask_for_queues() {
    static const int asked = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    static_cast<void>(asked);
}

std::string words(cudaError_t status) {
    return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
}

}  // namespace

void check(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    int device = -1;
    cudaGetDevice(&device);
    throw core::MachineError(std::string(call) + " failed on device " + std::to_string(device) + " at " +
                             file + ":" + std::to_string(line) + ": " + words(status));
}

int device_count() {
    ask_for_queues();
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
        cudaGetDeviceCount(&count) != cudaSuccess)
        return 0;
    return count;
}

DeviceReport probe_device(int device) {
    ask_for_queues();
    DeviceReport report;
    // Without a driver cudaDriverGetVersion succeeds and says 0, and cudaGetDeviceCount leaves its argument
    // as it was.
    if (const cudaError_t status = cudaDriverGetVersion(&report.driver_version); status != cudaSuccess) {
        report.reason = "the driver gives no version: " + words(status);
        return report;
    }
    if (report.driver_version == 0) {
        report.reason = "no NVIDIA driver is loaded";
        return report;
    }
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count <= 0) {
        report.reason =
            status == cudaSuccess ? "the driver shows no GPU" : "the driver shows no GPU: " + words(status);
        return report;
    }
    cudaDeviceProp properties = {};
    if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess) {
        report.reason = "device " + std::to_string(device) + " gives no properties: " + words(status);
        return report;
    }
    report.name = properties.name;
    report.compute_major = properties.major;
    report.compute_minor = properties.minor;
    report.memory = core::bytes(static_cast<double>(properties.totalGlobalMem));
    report.multiprocessors = properties.multiProcessorCount;
    // A binary without code for this GPU fails at the first launch: ask for a kernel's attributes, which
    // loads it.
    cudaFuncAttributes attributes = {};
    if (const cudaError_t status = cudaFuncGetAttributes(&attributes, empty_kernel); status != cudaSuccess) {
        cudaGetLastError();  // the error is answered here: later calls must not find it
        report.reason = report.name + " cannot run our kernels: " + words(status);
        return report;
    }
    report.available = true;
    return report;
}

std::string describe(const DeviceReport& report) {
    if (!report.available) return "no CUDA device: " + report.reason;
    return report.name + ", compute " + std::to_string(report.compute_major) + "." +
           std::to_string(report.compute_minor) + ", " + std::to_string(report.multiprocessors) +
           " multiprocessors, " + core::format(report.memory);
}

}  // namespace exec::cuda
