// Convolutions through cuDNN.
#pragma once

#include <cudnn.h>

#include <map>
#include <vector>

#include "exec/cuda/machine.h"

namespace exec::cuda {

class Convolutions {
public:
    explicit Convolutions(cudnnHandle_t handle) : handle_(handle) {}
    ~Convolutions();
    Convolutions(const Convolutions&) = delete;
    Convolutions& operator=(const Convolutions&) = delete;
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
    Prepared prepare(ConvolutionPass pass, Type type, const ImageShape& shape) const;

    const cudnnHandle_t handle_;
    std::map<std::vector<std::int64_t>, Prepared> prepared_;
    void* workspace_ = nullptr;
    std::size_t workspace_bytes_ = 0;
};

}  // namespace exec::cuda
