// The GPU that the CUDA backend would use. Plain C++: without CUDA the same functions answer that there is
// none.
#pragma once

#include <string>

#include "core/units.h"

namespace exec::cuda {

struct DeviceReport {
    bool available = false;
    int driver_version = 0;  // as CUDA counts, 13000 for 13.0; 0 without a driver
    std::string name;
    int compute_major = 0;
    int compute_minor = 0;
    core::Bytes memory;
    int multiprocessors = 0;
    std::string reason;  // why none is available, in a sentence
};

// Ada, Hopper and later.
constexpr bool has_fp8(int compute_major, int compute_minor) {
    return compute_major * 10 + compute_minor >= 89;
}
inline bool has_fp8(const DeviceReport& report) {
    return has_fp8(report.compute_major, report.compute_minor);
}

// How many devices the driver shows; 0 when there is none.
int device_count();
// Asks for one device. Never throws: no CUDA, no driver, no GPU or a GPU that our kernels are not compiled
// for is an answer.
DeviceReport probe_device(int device = 0);

// "NVIDIA A100-SXM4-40GB, compute 8.0, 108 multiprocessors, 39.4 GiB" or "no CUDA device: REASON".
std::string describe(const DeviceReport& report);

}  // namespace exec::cuda
