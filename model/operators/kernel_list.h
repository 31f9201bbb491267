// Kernels as the cost functions write them down.
#pragma once

#include <numeric>

#include "model/operators/cost.h"

namespace model {

inline Kernel memory_kernel(const char* what, double read, double written) {
    Kernel kernel;
    kernel.read = core::Bytes(read);
    kernel.written = core::Bytes(written);
    kernel.what = what;
    return kernel;
}

// `batch` products of m x k by k x n, every operand of `size` bytes an element moved once.
inline Kernel product_kernel(const char* what, std::int64_t batch, std::int64_t m, std::int64_t n,
                             std::int64_t k, double size) {
    Kernel kernel;
    kernel.kind = KernelKind::matrix_product;
    kernel.batch = batch;
    kernel.m = m;
    kernel.n = n;
    kernel.k = k;
    const double b = batch, x = m, y = n, z = k;
    kernel.flops = core::Flops(2 * b * x * y * z);
    kernel.read = core::Bytes(b * (x * z + z * y) * size);
    kernel.written = core::Bytes(b * x * y * size);
    kernel.alignment = std::gcd<std::int64_t>(8, std::gcd(n, k));
    kernel.what = what;
    return kernel;
}

// The same with the first operand lying as k rows of m, as in gradients of weights, keys and values.
inline Kernel transposed_product_kernel(const char* what, std::int64_t batch, std::int64_t m, std::int64_t n,
                                        std::int64_t k, double size) {
    Kernel kernel = product_kernel(what, batch, m, n, k, size);
    kernel.alignment = std::gcd<std::int64_t>(8, std::gcd(m, n));
    return kernel;
}

}  // namespace model
