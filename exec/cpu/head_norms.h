// Norms of queries and keys inside attention (QK norm: Henry et al., arXiv 2010.04245; with root mean squares
// as in Qwen3, arXiv 2505.09388, section 2): every head of every token is divided by its root mean square
// and multiplied by one scale for all heads.
#pragma once

#include <cstdint>

namespace exec::cpu {

// Heads that lie one after another in rows of packed numbers.
struct HeadRows {
    std::int64_t rows = 0, stride = 0;  // elements from row to row
    std::int64_t first = 0;             // element of a row where its first head begins
    std::int64_t heads = 0, dimension = 0;
    float epsilon = 0;
};

// x and y: whole rows; y's other elements stay as they are. scale: [dimension].
void normalise_heads(const HeadRows& at, const float* x, const float* scale, float* y);

// dy: of what normalise_heads gave. Adds to dx, of its argument, and to dscale: [dimension].
void normalise_heads_backward(const HeadRows& at, const float* x, const float* scale, const float* dy,
                              float* dx, float* dscale);

}  // namespace exec::cpu
