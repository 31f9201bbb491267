// Matrix products and sums over rows.
#pragma once

#include <cstdint>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

ConstMap matrix(const float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    return ConstMap(data, rows, columns, Eigen::OuterStride<>(stride));
}

template <class A, class B>
void multiply(const A& a, const B& b, float alpha, MutableMap c, bool accumulates) {
    if (accumulates) c.noalias() += alpha * (a * b);
    else c.noalias() = alpha * (a * b);
}

void product(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
             const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
             bool accumulates) {
    MutableMap result(c, m, n, Eigen::OuterStride<>(ldc));
    const ConstMap left = transpose_a ? matrix(a, k, m, lda) : matrix(a, m, k, lda);
    const ConstMap right = transpose_b ? matrix(b, n, k, ldb) : matrix(b, k, n, ldb);
    if (!transpose_a && !transpose_b) multiply(left, right, alpha, result, accumulates);
    else if (!transpose_a) multiply(left, right.transpose(), alpha, result, accumulates);
    else if (!transpose_b) multiply(left.transpose(), right, alpha, result, accumulates);
    else multiply(left.transpose(), right.transpose(), alpha, result, accumulates);
}

void accumulate(std::int64_t count, const float* x, float* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] += x[i];
}

void add_row(std::int64_t rows, std::int64_t columns, const float* row, float* y) {
    for (std::int64_t r = 0; r < rows; ++r) accumulate(columns, row, y + r * columns);
}

void sum_rows(std::int64_t rows, std::int64_t columns, const float* x, float* sum) {
    for (std::int64_t r = 0; r < rows; ++r) accumulate(columns, x + r * columns, sum);
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
