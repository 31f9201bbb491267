// Memory on the GPU, owned. Plain C++; without CUDA every operation throws core::MachineError.
#pragma once

#include <cstddef>
#include <span>

namespace exec::cuda {

// `count` floats on the current device. Failures of CUDA throw core::MachineError with call, place and CUDA's own words.
class FloatBuffer {
public:
    explicit FloatBuffer(std::size_t count);
    explicit FloatBuffer(std::span<const float> content);
    ~FloatBuffer();
    FloatBuffer(const FloatBuffer&) = delete;
    FloatBuffer& operator=(const FloatBuffer&) = delete;
    FloatBuffer(FloatBuffer&& other) noexcept;
    FloatBuffer& operator=(FloatBuffer&& other) noexcept;

    float* data() { return data_; }
    const float* data() const { return data_; }
    std::size_t size() const { return size_; }

    void upload(std::span<const float> content);    // waits; sizes must be equal
    void download(std::span<float> content) const;  // waits for all work on the device before; sizes must be equal

private:
    float* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace exec::cuda
