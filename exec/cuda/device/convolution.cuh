// Convolutions through cuDNN.
#pragma once

#include <cudnn.h>

#include <map>
#include <vector>

#include "exec/cuda/device/tuning/workspace.cuh"
#include "exec/cuda/machine.h"

namespace exec::cuda {

class Convolutions {
public:
    // `workspace` is shared with other calls of the same stream.
    Convolutions(cudnnHandle_t handle, Workspace& workspace) : handle_(handle), workspace_(workspace) {}
    ~Convolutions();
    Convolutions(const Convolutions&) = delete;
    Convolutions& operator=(const Convolutions&) = delete;
    // Chooses the algorithm and says what workspace it needs.
    void prepare(ConvolutionPass pass, Type type, const ImageShape& shape) { find(pass, type, shape); }
    void perform(Stream stream, ConvolutionPass pass, Type type, const ImageShape& shape, const void* a,
                 const void* b, void* result, bool accumulates);

private:
    struct Prepared {
        cudnnTensorDescriptor_t x = nullptr, y = nullptr;
        cudnnFilterDescriptor_t weight = nullptr;
        cudnnConvolutionDescriptor_t convolution = nullptr;
        int algorithm = 0;
        std::size_t workspace = 0;
    };
    Prepared make(ConvolutionPass pass, Type type, const ImageShape& shape) const;
    const Prepared& find(ConvolutionPass pass, Type type, const ImageShape& shape);

    const cudnnHandle_t handle_;
    Workspace& workspace_;
    std::map<std::vector<std::int64_t>, Prepared> prepared_;
};

}  // namespace exec::cuda
