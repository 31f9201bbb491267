// Norms of queries and keys inside attention (QK norm: Henry et al., arXiv 2010.04245; with root mean squares
// as in Qwen3, arXiv 2505.09388, section 2): every head of every token is divided by its root mean square
// and multiplied by one scale for all heads.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/backend/operator_kernels.h"
#include "exec/cpu/kernels.h"
#include "model/operator.h"

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

// What attention's kernel reads and writes in place of its operands where queries and keys are normalised:
// copies of whole rows in scratch arrays, of which values stay as they are.
class NormalisedHeads {
public:
    // `memory`: of keys and values; that of the queries, or rows of its own. `row`: elements of a row of
    // queries.
    NormalisedHeads(const AttentionShape& shape, const model::Attributes& a, const Operands& x,
                    const float* memory, std::int64_t row);
    const float* queries() const { return normalised_queries_; }
    const float* memory() const { return normalised_memory_; }

    void clear_gradients();
    float* query_gradients() { return query_gradients_; }
    float* memory_gradients() { return memory_gradients_; }

    // Adds to the operands' gradients, and to `dscales`: of queries' and keys' scales, [2 dimension].
    void backward(float* dqueries, float* dmemory, std::vector<float>& dscales) const;

private:
    const float *queries_, *memory_, *scales_[2];
    const bool is_packed_;
    HeadRows query_rows_, key_rows_;
    float *normalised_queries_ = nullptr, *normalised_memory_ = nullptr, *query_gradients_ = nullptr,
          *memory_gradients_ = nullptr;
};

}  // namespace exec::cpu
