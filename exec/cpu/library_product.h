// Matrix products of oneDNN, where the build has it: it chooses the instruction set at run time as our own
// kernels do.
#pragma once

#include <cstdint>

namespace exec::cpu {

// As Kernels::product, on one thread. Small products are left to `own`, which has no calls and checks around
// them.
using Product = void (*)(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                         float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                         float* c, std::int64_t ldc, bool accumulates);

// Null when this build is without the library.
Product library_product(Product own);

}  // namespace exec::cpu
