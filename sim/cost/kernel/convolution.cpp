// The tables are least-error fits of t = t0 + max(flops / (e * peak), bytes / (b * bandwidth)) to DeepBench
// (baidu-research/DeepBench@da81ba78, NVIDIA V100 and T4 sheets of training, CUDA 10.1, cuDNN 7.6.2; 94
// layers each): median error 5 to 20 % by class, weight gradients of 3x3 in half precision 23 to 33 %.
#include "sim/cost/kernel/convolution.h"

#include <algorithm>
#include <array>

#include "core/index/integers.h"

namespace sim {

namespace {

// [class][forward, input gradient, weight gradient]
using Table = std::array<std::array<double, 3>, 4>;
enum Class { pointwise, strided_pointwise, three_by_three, other };

constexpr Table v100_half = {
    {{0.40, 0.36, 0.74}, {0.40, 0.36, 0.48}, {0.72, 0.58, 0.72}, {0.40, 0.34, 0.34}}};
constexpr Table v100_full = {
    {{0.84, 0.72, 0.46}, {0.64, 0.30, 0.44}, {1.46, 1.46, 1.74}, {0.84, 0.60, 0.82}}};
constexpr Table t4_half = {{{0.38, 0.50, 0.32}, {0.42, 0.18, 0.30}, {0.54, 0.50, 0.42}, {0.26, 0.24, 0.24}}};
constexpr Table t4_full = {{{0.48, 0.48, 0.28}, {0.44, 0.26, 0.30}, {0.78, 0.72, 0.88}, {0.54, 0.36, 0.48}}};

bool has_table(const cluster::DeviceSpec& device) {
    return device.architecture == "sm70" || device.architecture == "sm75";
}

// The memory leg of the fits, and of products on V100.
constexpr double memory_leg = 0.65;
// Share of peak that products reach on V100 (hardware_profiles/devices/V100-SXM2-16GB.toml: DeepBench, the
// same sheets).
constexpr double v100_half_products = 0.79, v100_full_products = 0.85;

// A tensor core is fed through the same memories whether it multiplies or convolves: what products lose of
// the peak on a newer device, convolutions do.
double carried(const cluster::DeviceSpec& device, core::DataType compute) {
    const double products = device.matrix_product.at(compute).compute_efficiency;
    return products > 0
               ? products / (compute == core::DataType::fp32 ? v100_full_products : v100_half_products)
               : 1;
}

Class class_of(const model::Kernel& kernel) {
    if (kernel.kernel_y == 1 && kernel.kernel_x == 1)
        return kernel.stride == 1 ? pointwise : strided_pointwise;
    return kernel.kernel_y == 3 && kernel.kernel_x == 3 && kernel.stride == 1 ? three_by_three : other;
}

}  // namespace

double convolution_efficiency(const model::Kernel& kernel, model::Phase phase,
                              const cluster::DeviceSpec& device, core::DataType compute, bool is_tuned) {
    const bool is_turing = device.architecture == "sm75";
    const Table& table = compute == core::DataType::fp32 ? (is_turing ? t4_full : v100_full)
                         : is_turing                     ? t4_half
                                                         : v100_half;
    const Class kind = class_of(kernel);
    const double measured =
        table[kind == three_by_three && !is_tuned ? other : kind][core::position_of(phase)];
    return has_table(device) ? measured : measured * carried(device, compute);
}

double convolution_memory_efficiency(const cluster::DeviceSpec& device, core::DataType compute) {
    if (has_table(device)) return memory_leg;
    // Products and convolutions stream alike: on V100 both fits have the same memory leg.
    return std::max(memory_leg, device.matrix_product.at(compute).memory_efficiency);
}

}  // namespace sim
