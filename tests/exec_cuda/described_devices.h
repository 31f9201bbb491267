// GPUs that are described, not there, and what cuDNN says of attention on them.
#pragma once

#include <optional>

#include <catch2/catch.hpp>

#include "exec/cuda/device/attention/attention_plans.h"

namespace described {

using namespace exec::cuda;

// CUDA C++ programming guide, technical specifications by compute capability (13.0, read 2026-11);
// processors, memory and clocks: the products' data sheets.
inline const DescribedDevice t4{
    "Tesla T4",          7,       5,      40, 1024, 16, core::gibibytes(16), core::mebibytes(4),
    core::kibibytes(64), 1590000, 5001000};
inline const DescribedDevice a100{
    "NVIDIA A100-SXM4-40GB", 8,       0,      108, 2048, 32, core::gibibytes(40), core::mebibytes(40),
    core::kibibytes(163),    1410000, 1215000};
inline const DescribedDevice a10g{
    "NVIDIA A10G",       8,       6,      80, 1536, 16, core::gibibytes(24), core::mebibytes(6),
    core::kibibytes(99), 1710000, 6251000};
inline const DescribedDevice l4{
    "NVIDIA L4",         8,       9,      58, 1536, 24, core::gibibytes(24), core::mebibytes(48),
    core::kibibytes(99), 2040000, 6251000};
inline const DescribedDevice h100{
    "NVIDIA H100 80GB HBM3", 9,       0,      132, 2048, 32, core::gibibytes(80), core::mebibytes(50),
    core::kibibytes(227),    1980000, 2619000};

// Nothing where cuDNN has both directions.
inline std::optional<core::Unsupported> unsupported(const DescribedDevice& device,
                                                    const FusedAttentionShape& shape,
                                                    Type type = Type::bf16) {
    for (const bool is_backward : {false, true})
        if (auto reason = attention_unsupported(device, is_backward, type, shape)) return reason;
    return std::nullopt;
}

inline bool are_absent() {
    const std::optional<core::Unsupported> reason = attention_plans_unsupported();
    if (reason) WARN("skipped: " + reason->reason);
    return reason.has_value();
}

}  // namespace described
