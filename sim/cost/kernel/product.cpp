// Tiles: a product is cut into output tiles of a few shapes; multiprocessors take tiles in waves, so the last
// wave may be partly idle, and every tile pays for filling and draining its pipeline, which weighs at small
// depth (bmm of attention: k = 64 or 128). Against 351 products with m >= 512 of microsoft/vidur@7d47513 the
// form has a mean error of 6.0 % on A100 and 8.4 % on H100 (rates of the smaller tiles are fitted there). On
// Volta and Turing (DeepBench) waves explain nothing, so the plain form stays.
#include "sim/cost/kernel/product.h"

#include <algorithm>
#include <cmath>

namespace sim {

namespace {

bool is_gpu(const cluster::DeviceSpec& device) { return device.architecture.starts_with("sm"); }

int generation(const cluster::DeviceSpec& device) {
    int value = 0;
    for (char c : device.architecture)
        if (c >= '0' && c <= '9') value = value * 10 + (c - '0');
    return value;
}

// Rate between measured points, straight in log(flops); constant beyond them.
core::FlopsPerSecond rate_at(const std::vector<cluster::MatrixProductCurve::Point>& points,
                             core::Flops flops) {
    const auto above = std::lower_bound(points.begin(), points.end(), flops,
                                        [](const auto& point, core::Flops f) { return point.flops < f; });
    if (above == points.begin()) return points.front().rate;
    if (above == points.end()) return points.back().rate;
    const auto below = above - 1;
    const double t = std::log(flops / below->flops) / std::log(above->flops / below->flops);
    return below->rate + (above->rate - below->rate) * t;
}

// Tensor cores are fed by 16 bytes of a row at a time. Where rows do not begin there, cuBLAS before 11.0 left
// the tensor cores (NVIDIA, matrix multiplication background, 2020), and strided batches still do: BLOOM's
// heads of 150 on A100 cost what ordinary units take. Since 11.0 a single product loads such rows piecewise.
// What that costs (CostConstants::unaligned_rate) follows from one figure: with 50257 words instead of 50304
// a step of GPT-2 124M takes about 1.25 times as long on A100 (A. Karpathy, 2023-02-03). Logits are 50304 x
// 768 of 50304 x 768 + 12 x 12 x 768^2 multiplications a token, 31 %. With a rate r for them a step of
// products alone takes 0.69 + 0.31 / r, which is 1.25 at r = 0.55; with a fifth of the step in other kernels
// (0.2 + 0.8 of that), at 0.50.

// Depth (k) of the products whose plateau devices state, and from which the depth is worth splitting.
constexpr double deep = 2048;
// Compute capability, times ten, from which products are priced by tiles: A100's.
constexpr int first_tiled_generation = 80;
// Operands of two bytes need this alignment, in elements, for tensor cores: 16 bytes.
constexpr int aligned_elements = 8;

struct Tile {
    double m, n, rate;  // rate: share of the largest tile's (smaller tiles reuse less of what they load)
};
constexpr Tile tiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.85}, {256, 64, 0.9},
                          {64, 256, 0.9},  {128, 64, 0.9},  {64, 128, 0.9},   {64, 64, 0.45}};

// `fill_depth`: depth k at which filling and draining a tile costs as much as its work.
core::Seconds tiled_arithmetic(const model::Kernel& kernel, core::FlopsPerSecond rate, int multiprocessors,
                               double fill_depth, double wave_softness) {
    const double units = multiprocessors, m = static_cast<double>(kernel.m),
                 n = static_cast<double>(kernel.n), k = static_cast<double>(kernel.k);
    double least = 0;
    for (const Tile& tile : tiles)
        for (const double splits :
             {1.0, 2.0, 4.0, 8.0}) {  // of the depth, when the tiles do not fill one wave
            if (splits > 1 && k < deep) break;
            const double blocks =
                std::ceil(m / tile.m) * std::ceil(n / tile.n) * static_cast<double>(kernel.batch) * splits;
            if (splits > 1 && blocks > units) break;
            const double waves = std::ceil(blocks / units) * (1 - wave_softness) +
                                 std::max(1.0, blocks / units) * wave_softness;
            const double time =
                waves * units * tile.m * tile.n * 2 * (k / splits + fill_depth) / (tile.rate * rate.value);
            if (least == 0 || time < least) least = time;
        }
    return core::Seconds(least);
}

}  // namespace

bool has_tiles(const cluster::DeviceSpec& device) {
    return is_gpu(device) && generation(device) >= first_tiled_generation && device.multiprocessors > 0;
}

double sustained_rate(const cluster::DeviceSpec& device, core::DataType compute,
                      const CostConstants& constants) {
    if (!is_gpu(device)) return 1;
    const bool is_full = compute == core::DataType::fp32 || compute == core::DataType::tf32;
    if (is_full) return constants.sustained_full;
    const double half = device.architecture == "sm90"   ? constants.sustained_hopper
                        : device.architecture == "sm80" ? constants.sustained_ampere
                                                        : constants.sustained_half;
    return compute == core::DataType::fp8 ? half * constants.fp8_rate : half;
}

core::BytesPerSecond memory_rate(const cluster::DeviceSpec& device, const CostConstants& constants) {
    const core::BytesPerSecond streaming = device.memory_bandwidth * device.memory_efficiency;
    return is_gpu(device) ? streaming * constants.memory_rate : streaming;
}

core::Seconds product_time(const model::Kernel& kernel, const cluster::DeviceSpec& device,
                           core::DataType compute, const CostConstants& constants) {
    const cluster::MatrixProductCurve& curve = device.matrix_product.at(compute);
    const core::Bytes bytes = kernel.read + kernel.written;
    const core::Seconds streaming = bytes / (device.memory_bandwidth * curve.memory_efficiency);
    if (!curve.points.empty() && kernel.flops.value > 0) {
        // Measured rates hold for one product of that size; `batch` products run side by side on a GPU and
        // one after another on a core: the size that counts is the sum.
        return std::max(kernel.flops / rate_at(curve.points, kernel.flops), streaming);
    }
    const core::FlopsPerSecond plateau =
        device.peak.at(compute) * (curve.compute_efficiency * sustained_rate(device, compute, constants));
    core::FlopsPerSecond rate = plateau;
    if (is_gpu(device) && core::size_of(compute).value < 4 && kernel.alignment < aligned_elements) {
        const auto full = device.peak.find(core::DataType::fp32);
        if (kernel.batch > 1 && full != device.peak.end())
            return device.kernel_launch +
                   std::max(kernel.flops / (full->second * curve.compute_efficiency), streaming);
        rate = plateau * constants.unaligned_rate;
    }
    if (has_tiles(device) && kernel.m > 0) {
        // Filling takes the same time in every format, so twice the depth where products run at twice the
        // rate.
        const double fill_depth = constants.tile_fill_depth * (compute == core::DataType::fp8 ? 2 : 1);
        return device.kernel_launch +
               std::max(tiled_arithmetic(kernel, rate * constants.full_tile_rate, device.multiprocessors,
                                         fill_depth, constants.wave_softness),
                        streaming);
    }
    // The plateau is that of deep products; a batch of shallow ones (attention) fills and drains its tiles as
    // often as it writes them.
    const double depth = static_cast<double>(std::max<std::int64_t>(kernel.k, 1));
    const double filling = is_gpu(device) && kernel.batch > 1 ? (1 + constants.tile_fill_depth / depth) /
                                                                    (1 + constants.tile_fill_depth / deep)
                                                              : 1;
    return curve.launch + std::max(kernel.flops / rate * std::max(1.0, filling), streaming);
}

}  // namespace sim
