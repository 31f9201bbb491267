#include "sim/cost/kernel/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace sim {

namespace {

// Forward and backward together, TFLOP/s by sequence length 512, 1k, 2k, 4k, 8k, 16k: labelled bars of
// Dao-AILab/flash-attention@0251105, assets/flash2_{a100,h100}_*.png, read 2026-11-21 (FlashAttention-2,
// fp16, hidden 2048).
using Curve = std::array<double, 6>;
struct Curves {
    Curve dimension_64, dimension_64_causal, dimension_128, dimension_128_causal;
    double peak;  // TFLOP/s fp16 dense of the device measured
};
constexpr Curves a100 = {{132, 153, 162, 171, 175, 176},
                         {88, 119, 140, 156, 165, 171},
                         {150, 173, 187, 196, 201, 203},
                         {99, 133, 155, 173, 182, 189},
                         312};
constexpr Curves h100 = {{215, 254, 274, 288, 294, 296},
                         {141, 192, 232, 257, 273, 284},
                         {248, 294, 320, 326, 335, 338},
                         {163, 221, 265, 294, 308, 328},
                         989};

// cuDNN on Hopper, TFLOP/s of 989 by the same sequence lengths. Dimension 128 from 4k on, and causal 2k:
// NVIDIA/cudnn-frontend@3929da2, benchmark/sdpa_benchmark_training, H200 at 700 W, cuDNN 9.1 and 9.19.
// Shorter ones and dimension 64: bars of arXiv 2407.08608, figures 5 and 6 (H100, 2024). Causal figures that
// neither states (backward below 2k, dimension 64) have the share of the full ones that forward has at
// dimension 128.
struct SplitCurves {
    Curve forward_64, backward_64, forward_128, backward_128;
};
constexpr SplitCurves cudnn_full = {{335, 373, 395, 408, 412, 413},
                                    {266, 348, 395, 417, 432, 433},
                                    {497, 574, 617, 704, 697, 688},
                                    {305, 408, 465, 535, 537, 547}};
constexpr SplitCurves cudnn_causal = {{212, 266, 310, 355, 383, 390},
                                      {212, 277, 314, 341, 372, 387},
                                      {315, 410, 484, 613, 646, 650},
                                      {243, 325, 370, 438, 462, 489}};
constexpr double cudnn_peak = 989;

// The same figures split: forward runs at 1.2 and backward at 0.94 of the rate of both (1/1.2 + 2.5/0.94
// = 3.5), the ratio of the forward-only bars.
constexpr double forward_share = 1.2, backward_share = 0.94;

// Log-linear between the points; below 512 the kernel's parallelism shrinks with the sequence, so the rate
// falls in proportion.
double at(const Curve& curve, double sequence) {
    constexpr double first_tokens = 512;  // of the curve's first point; each further one has twice as many
    constexpr double last = std::tuple_size_v<Curve> - 1;
    const double position = std::log2(std::max(sequence, 1.0) / first_tokens);
    if (position <= 0) return curve.front() * std::max(sequence, 1.0) / first_tokens;
    if (position >= last) return curve.back();
    const auto below = static_cast<std::size_t>(position);
    return curve[below] + (curve[below + 1] - curve[below]) * (position - static_cast<double>(below));
}

// Between the measured head dimensions by interpolation, outside by the nearer one.
double share_of_large(std::int64_t head_dimension) {
    constexpr double small = 64, large = 128;
    return std::clamp((static_cast<double>(head_dimension) - small) / (large - small), 0.0, 1.0);
}

}  // namespace

FlashAttentionSource flash_attention_source(const cluster::DeviceSpec& device) {
    if (device.architecture == "sm80" || device.architecture == "sm90") return FlashAttentionSource::measured;
    if (device.architecture.starts_with("sm8") || device.architecture.starts_with("sm9") ||
        device.architecture.starts_with("sm1"))
        return FlashAttentionSource::by_ratio;
    return FlashAttentionSource::products;
}

core::FlopsPerSecond flash_attention_rate(const cluster::DeviceSpec& device, core::DataType compute,
                                          std::int64_t head_dimension, std::int64_t sequence, bool is_causal,
                                          bool is_backward) {
    const auto peak = device.peak.find(compute);
    const core::FlopsPerSecond top = peak == device.peak.end() ? core::FlopsPerSecond(0) : peak->second;
    const bool is_half = compute == core::DataType::fp16 || compute == core::DataType::bf16;
    if (flash_attention_source(device) == FlashAttentionSource::products || !is_half) {
        const auto curve = device.matrix_product.find(compute);
        return top * (curve == device.matrix_product.end() ? 1.0 : curve->second.compute_efficiency);
    }
    const Curves& curves = device.architecture == "sm90" ? h100 : a100;
    const double length = static_cast<double>(sequence);
    const double at_64 = at(is_causal ? curves.dimension_64_causal : curves.dimension_64, length);
    const double at_128 = at(is_causal ? curves.dimension_128_causal : curves.dimension_128, length);
    const double mix = share_of_large(head_dimension);
    const double share_of_peak = (at_64 + (at_128 - at_64) * mix) / curves.peak;
    // A board with a lower power limit runs its tensor cores at lower clocks, whatever they work on.
    return top * share_of_peak * device.clock_share * (is_backward ? backward_share : forward_share);
}

bool has_cudnn_attention(const cluster::DeviceSpec& device) { return device.architecture == "sm90"; }

core::FlopsPerSecond cudnn_attention_rate(const cluster::DeviceSpec& device, core::DataType compute,
                                          std::int64_t head_dimension, std::int64_t sequence, bool is_causal,
                                          bool is_backward) {
    const bool is_half = compute == core::DataType::fp16 || compute == core::DataType::bf16;
    if (!is_half)
        return flash_attention_rate(device, compute, head_dimension, sequence, is_causal, is_backward);
    const SplitCurves& curves = is_causal ? cudnn_causal : cudnn_full;
    const double length = static_cast<double>(sequence);
    const double at_64 = at(is_backward ? curves.backward_64 : curves.forward_64, length);
    const double at_128 = at(is_backward ? curves.backward_128 : curves.forward_128, length);
    const double mix = share_of_large(head_dimension);
    return device.peak.at(compute) * ((at_64 + (at_128 - at_64) * mix) / cudnn_peak * device.clock_share);
}

}  // namespace sim
