#include "exec/reference_matrix.h"

#include <algorithm>
#include <thread>

namespace exec::reference {

namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void rows_of_product(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t k, const double* a, const double* b, double* c) {
    for (std::int64_t i = begin; i < end; i += 4) {
        const std::int64_t rows = end - i < 4 ? end - i : 4;
        if (rows == 4) {  // four rows share each row of b that is read
            double *c0 = c + i * n, *c1 = c0 + n, *c2 = c1 + n, *c3 = c2 + n;
            for (std::int64_t p = 0; p < k; ++p) {
                const double *row = b + p * n, a0 = a[i * k + p], a1 = a[(i + 1) * k + p], a2 = a[(i + 2) * k + p], a3 = a[(i + 3) * k + p];
                for (std::int64_t j = 0; j < n; ++j) {
                    c0[j] += a0 * row[j];
                    c1[j] += a1 * row[j];
                    c2[j] += a2 * row[j];
                    c3[j] += a3 * row[j];
                }
            }
            continue;
        }
        for (std::int64_t r = i; r < i + rows; ++r)
            for (std::int64_t p = 0; p < k; ++p) {
                const double factor = a[r * k + p];
                for (std::int64_t j = 0; j < n; ++j) c[r * n + j] += factor * b[p * n + j];
            }
    }
}

}  // namespace

Array product(std::int64_t m, std::int64_t n, std::int64_t k, const Array& a, const Array& b) {
    Array c(static_cast<std::size_t>(m * n), 0.0);
    // A thread takes some 30 us to start: for small products one is enough.
    const std::int64_t workers = m * n * k < 4'000'000 ? 1 : std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 8);
    const std::int64_t share = ((m + workers - 1) / workers + 3) / 4 * 4;
    std::vector<std::thread> threads;
    for (std::int64_t begin = share; begin < m; begin += share)
        threads.emplace_back(rows_of_product, begin, std::min(m, begin + share), n, k, a.data(), b.data(), c.data());
    rows_of_product(0, std::min(m, share), n, k, a.data(), b.data(), c.data());
    for (std::thread& thread : threads) thread.join();
    return c;
}

Array transposed(std::int64_t rows, std::int64_t columns, const Array& a) {
    Array result(a.size());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) result[static_cast<std::size_t>(c * rows + r)] = a[static_cast<std::size_t>(r * columns + c)];
    return result;
}

}  // namespace exec::reference
