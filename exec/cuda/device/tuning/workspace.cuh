// Workspace of libraries: what they ask for while a run is planned, in memory that the run gives them. For
// files of device/.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "exec/cuda/device/library_check.cuh"

namespace exec::cuda {

// One room for all calls: they are on one stream, one after the other.
class Workspace {
public:
    Workspace() = default;
    ~Workspace() { cudaFree(own_); }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    void need(std::size_t bytes) { wanted_ = std::max(wanted_, bytes); }
    std::size_t wanted() const { return wanted_; }
    // null: it is taken back.
    void give(void* memory, std::size_t bytes) {
        given_ = memory;
        given_bytes_ = memory ? bytes : 0;
    }
    // At least `bytes`, aligned at 256. Outside of runs, as in tests of kernels, it is allocated here.
    void* get(std::size_t bytes) {
        if (bytes <= given_bytes_) return given_;
        if (bytes > own_bytes_) {
            check(cudaFree(own_), "cudaFree");  // which waits for the device
            own_ = nullptr;
            own_bytes_ = 0;
            check(cudaMalloc(&own_, bytes), "cudaMalloc");
            own_bytes_ = bytes;
        }
        return own_;
    }

private:
    std::size_t wanted_ = 0, given_bytes_ = 0, own_bytes_ = 0;
    void *given_ = nullptr, *own_ = nullptr;
};

}  // namespace exec::cuda
