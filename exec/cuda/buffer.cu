#include "exec/cuda/buffer.h"

#include <utility>

#include "core/diagnostics.h"
#include "exec/cuda/check.cuh"

namespace exec::cuda {

FloatBuffer::FloatBuffer(std::size_t count) : size_(count) {
    if (count > 0) check(cudaMalloc(&data_, count * sizeof(float)), "cudaMalloc");
}

FloatBuffer::FloatBuffer(std::span<const float> content) : FloatBuffer(content.size()) { upload(content); }

FloatBuffer::~FloatBuffer() { cudaFree(data_); }

FloatBuffer::FloatBuffer(FloatBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FloatBuffer& FloatBuffer::operator=(FloatBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

void FloatBuffer::upload(std::span<const float> content) {
    core::require(content.size() == size_, "an upload has the size of its buffer");
    if (size_ > 0) check(cudaMemcpy(data_, content.data(), size_ * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void FloatBuffer::download(std::span<float> content) const {
    core::require(content.size() == size_, "a download has the size of its buffer");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (size_ > 0) check(cudaMemcpy(content.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

}  // namespace exec::cuda
