// The tables are least-error fits of t = t0 + max(flops / (e * peak), bytes / (b * bandwidth)) to DeepBench (baidu-research/DeepBench@da81ba78, NVIDIA V100 and T4
// sheets of training, CUDA 10.1, cuDNN 7.6.2; 94 layers each): median error 5 to 20 % by class, weight gradients of 3x3 in half precision 23 to 33 %.
#include "sim/cost/convolution.h"

#include <array>

namespace sim {

namespace {

// [class][forward, input gradient, weight gradient]
using Table = std::array<std::array<double, 3>, 4>;
enum Class { pointwise, strided_pointwise, three_by_three, other };

constexpr Table v100_half = {{{0.40, 0.36, 0.74}, {0.40, 0.36, 0.48}, {0.72, 0.58, 0.72}, {0.40, 0.34, 0.34}}};
constexpr Table v100_full = {{{0.84, 0.72, 0.46}, {0.64, 0.30, 0.44}, {1.46, 1.46, 1.74}, {0.84, 0.60, 0.82}}};
constexpr Table t4_half = {{{0.38, 0.50, 0.32}, {0.42, 0.18, 0.30}, {0.54, 0.50, 0.42}, {0.26, 0.24, 0.24}}};
constexpr Table t4_full = {{{0.48, 0.48, 0.28}, {0.44, 0.26, 0.30}, {0.78, 0.72, 0.88}, {0.54, 0.36, 0.48}}};

Class class_of(const model::Kernel& kernel) {
    if (kernel.kernel_y == 1 && kernel.kernel_x == 1) return kernel.stride == 1 ? pointwise : strided_pointwise;
    return kernel.kernel_y == 3 && kernel.kernel_x == 3 && kernel.stride == 1 ? three_by_three : other;
}

}  // namespace

double convolution_efficiency(const model::Kernel& kernel, model::Phase phase, const cluster::DeviceSpec& device, core::DataType compute) {
    const bool is_turing = device.architecture == "sm75";
    const Table& table = compute == core::DataType::fp32 ? (is_turing ? t4_full : v100_full) : is_turing ? t4_half : v100_half;
    return table[class_of(kernel)][static_cast<std::size_t>(phase)];
}

double convolution_memory_efficiency(const cluster::DeviceSpec&, core::DataType) { return 0.65; }

}  // namespace sim
