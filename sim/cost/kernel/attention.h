// Rates of fused attention kernels, from published curves.
#pragma once

#include <cstdint>

#include "cluster/device.h"
#include "core/data_type.h"
#include "core/units.h"

namespace sim {

// Whose fused attention runs: FlashAttention of 2022 or of 2023 and later, or cuDNN's, which Transformer
// Engine prefers on Hopper (elsewhere it takes FlashAttention-2).
enum class AttentionKernel { flash_1, flash_2, cudnn };

enum class FlashAttentionSource {
    measured,  // a published curve of this architecture
    by_ratio,  // the A100's share of peak carried over
    products,  // no such kernel: the products at the device's matrix-product efficiency
};
FlashAttentionSource flash_attention_source(const cluster::DeviceSpec& device);

// Forward (or backward) FLOP/s at that many keys per query, counted as the FlashAttention papers do: causal
// halves the FLOPs, backward is 2.5 times forward.
core::FlopsPerSecond flash_attention_rate(const cluster::DeviceSpec& device, core::DataType compute,
                                          std::int64_t head_dimension, std::int64_t sequence, bool is_causal,
                                          bool is_backward);

// The same for cuDNN 9's kernels, of devices that has_cudnn_attention() is true for.
bool has_cudnn_attention(const cluster::DeviceSpec& device);
core::FlopsPerSecond cudnn_attention_rate(const cluster::DeviceSpec& device, core::DataType compute,
                                          std::int64_t head_dimension, std::int64_t sequence, bool is_causal,
                                          bool is_backward);

}  // namespace sim
