// Limits on what a description or config may ask for. Far above any published model; low enough that no
// product of dimensions overflows 64 bits before it is checked.
#pragma once

#include <fmt/core.h>

#include "core/reader.h"

namespace model {

inline constexpr core::IntegerRange hidden_range{1, std::int64_t(1) << 18};
inline constexpr core::IntegerRange width_range{1, std::int64_t(1) << 22};  // feed-forward
inline constexpr core::IntegerRange layer_range{1, 4096};  // 4096 layers build in tens of megabytes
inline constexpr core::IntegerRange head_range{1, 1 << 14};
inline constexpr core::IntegerRange head_dimension_range{1, 1 << 14};
inline constexpr core::IntegerRange vocabulary_range{2, std::int64_t(1) << 28};
inline constexpr core::IntegerRange token_range{1, std::int64_t(1) << 28};  // sequence lengths and positions
inline constexpr core::IntegerRange expert_range{1, 1 << 14};
inline constexpr core::IntegerRange image_range{1, 1 << 14};
inline constexpr core::IntegerRange class_range{2, std::int64_t(1) << 24};
inline constexpr core::RealRange probability_range{0, 0.99};
inline constexpr core::RealRange epsilon_range{1e-20, 1};
inline constexpr double most_parameters = 1e15;

// An error at `key` unless `divisor`, its value, divides `whole`.
inline void must_divide(core::TableReader& reader, const char* key, std::int64_t divisor, const char* of,
                        std::int64_t whole) {
    if (whole % divisor != 0)
        reader.error(key,
                     fmt::format("{} = {} does not divide {} = {}", reader.path_of(key), divisor, of, whole),
                     fmt::format("choose a divisor of {}", whole));
}

}  // namespace model
