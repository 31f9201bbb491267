#include "exec/cuda/device/convolution.cuh"
#include "core/index/integers.h"

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cuda/device/library_check.cuh"

namespace exec::cuda {

namespace {

cudnnDataType_t library_type(Type type) {
    switch (type) {
        case Type::fp32: return CUDNN_DATA_FLOAT;
        case Type::bf16: return CUDNN_DATA_BFLOAT16;
        case Type::fp16: return CUDNN_DATA_HALF;
    }
    throw core::InternalError(fmt::format("cuDNN has no element type {}", static_cast<int>(type)));
}

// The first that works with what memory it wants, of those that give the same bits every time.
template <class Result>
const Result& choose(const std::vector<Result>& results, int count) {
    for (int i = 0; i < count; ++i)
        if (const Result& r = results[i];
            r.status == CUDNN_STATUS_SUCCESS && r.determinism == CUDNN_DETERMINISTIC)
            return r;
    throw core::MachineError("cuDNN has no deterministic algorithm for a convolution");
}

}  // namespace

Convolutions::~Convolutions() {
    for (auto& [key, prepared] : prepared_) {
        cudnnDestroyTensorDescriptor(prepared.x);
        cudnnDestroyTensorDescriptor(prepared.y);
        cudnnDestroyFilterDescriptor(prepared.weight);
        cudnnDestroyConvolutionDescriptor(prepared.convolution);
    }
}

Convolutions::Prepared Convolutions::make(ConvolutionPass pass, Type type, const ImageShape& s) const {
    Prepared p;
    const auto n = [](std::int64_t value) { return static_cast<int>(value); };
    check(cudnnCreateTensorDescriptor(&p.x), "cudnnCreateTensorDescriptor");
    check(cudnnCreateTensorDescriptor(&p.y), "cudnnCreateTensorDescriptor");
    check(cudnnCreateFilterDescriptor(&p.weight), "cudnnCreateFilterDescriptor");
    check(cudnnCreateConvolutionDescriptor(&p.convolution), "cudnnCreateConvolutionDescriptor");
    const cudnnDataType_t element = library_type(type);
    check(cudnnSetTensor4dDescriptor(p.x, CUDNN_TENSOR_NCHW, element, n(s.samples), n(s.channels), n(s.rows),
                                     n(s.columns)),
          "cudnnSetTensor4dDescriptor");
    check(cudnnSetTensor4dDescriptor(p.y, CUDNN_TENSOR_NCHW, element, n(s.samples), n(s.out_channels),
                                     n(s.out_rows), n(s.out_columns)),
          "cudnnSetTensor4dDescriptor");
    check(cudnnSetFilter4dDescriptor(p.weight, element, CUDNN_TENSOR_NCHW, n(s.out_channels), n(s.channels),
                                     n(s.kernel_y), n(s.kernel_x)),
          "cudnnSetFilter4dDescriptor");
    check(cudnnSetConvolution2dDescriptor(p.convolution, n(s.padding), n(s.padding), n(s.stride), n(s.stride),
                                          1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor");
    check(cudnnSetConvolutionMathType(p.convolution,
                                      type == Type::fp32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH),
          "cudnnSetConvolutionMathType");
    int count = 0;
    if (pass == ConvolutionPass::forward) {
        std::vector<cudnnConvolutionFwdAlgoPerf_t> results(CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
        check(cudnnGetConvolutionForwardAlgorithm_v7(handle_, p.x, p.weight, p.convolution, p.y,
                                                     core::count_of(results), &count, results.data()),
              "cudnnGetConvolutionForwardAlgorithm_v7");
        const auto& chosen = choose(results, count);
        p.algorithm = chosen.algo;
        p.workspace = chosen.memory;
    } else if (pass == ConvolutionPass::input) {
        std::vector<cudnnConvolutionBwdDataAlgoPerf_t> results(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
        check(cudnnGetConvolutionBackwardDataAlgorithm_v7(handle_, p.weight, p.y, p.convolution, p.x,
                                                          core::count_of(results), &count, results.data()),
              "cudnnGetConvolutionBackwardDataAlgorithm_v7");
        const auto& chosen = choose(results, count);
        p.algorithm = chosen.algo;
        p.workspace = chosen.memory;
    } else {
        std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> results(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
        check(cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle_, p.x, p.y, p.convolution, p.weight,
                                                            core::count_of(results), &count, results.data()),
              "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
        const auto& chosen = choose(results, count);
        p.algorithm = chosen.algo;
        p.workspace = chosen.memory;
    }
    return p;
}

const Convolutions::Prepared& Convolutions::find(ConvolutionPass pass, Type type, const ImageShape& s) {
    const std::vector<std::int64_t> key{static_cast<std::int64_t>(pass),
                                        static_cast<std::int64_t>(type),
                                        s.samples,
                                        s.channels,
                                        s.rows,
                                        s.columns,
                                        s.out_channels,
                                        s.kernel_y,
                                        s.kernel_x,
                                        s.stride,
                                        s.padding};
    auto found = prepared_.find(key);
    if (found == prepared_.end()) {
        found = prepared_.emplace(key, make(pass, type, s)).first;
        workspace_.need(found->second.workspace);
    }
    return found->second;
}

void Convolutions::perform(Stream stream, ConvolutionPass pass, Type type, const ImageShape& s, const void* a,
                           const void* b, void* result, bool accumulates) {
    const Prepared& p = find(pass, type, s);
    void* const workspace = workspace_.get(p.workspace);
    const float alpha = 1, beta = accumulates ? 1.0f : 0.0f;
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
    switch (pass) {
        case ConvolutionPass::forward:
            check(cudnnConvolutionForward(handle_, &alpha, p.x, a, p.weight, b, p.convolution,
                                          static_cast<cudnnConvolutionFwdAlgo_t>(p.algorithm), workspace,
                                          p.workspace, &beta, p.y, result),
                  "cudnnConvolutionForward");
            break;
        case ConvolutionPass::input:
            check(cudnnConvolutionBackwardData(handle_, &alpha, p.weight, b, p.y, a, p.convolution,
                                               static_cast<cudnnConvolutionBwdDataAlgo_t>(p.algorithm),
                                               workspace, p.workspace, &beta, p.x, result),
                  "cudnnConvolutionBackwardData");
            break;
        case ConvolutionPass::weight:
            check(cudnnConvolutionBackwardFilter(handle_, &alpha, p.x, a, p.y, b, p.convolution,
                                                 static_cast<cudnnConvolutionBwdFilterAlgo_t>(p.algorithm),
                                                 workspace, p.workspace, &beta, p.weight, result),
                  "cudnnConvolutionBackwardFilter");
            break;
    }
}

}  // namespace exec::cuda
