// Rates of fused attention kernels, from published curves.
#pragma once

#include <cstdint>

#include "cluster/device.h"
#include "core/data_type.h"
#include "core/units.h"

namespace sim {

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

}  // namespace sim
