// Elements that operators keep or read beside their tensors, in types that no plan chooses.
#pragma once

namespace model {

// Statistics, softmax and accumulators: fp32 in every framework.
inline constexpr double fp32_bytes = 4;
// Indices (of maxima, of chosen experts): PyTorch keeps them in 64 bits.
inline constexpr double index_bytes = 8;
// A mask of dropout: PyTorch keeps a byte an element.
inline constexpr double mask_bytes = 1;
// Mean and reciprocal deviation of a row (layer norm) or channel (batch norm).
inline constexpr double mean_and_deviation_bytes = 2 * fp32_bytes;

}  // namespace model
