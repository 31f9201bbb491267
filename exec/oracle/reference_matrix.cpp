#include "exec/oracle/reference_matrix.h"

#include <algorithm>

#include "core/parallel.h"
#include "exec/cpu/cores.h"

namespace exec::oracle {

namespace {

// Levels, not single sets: with "avx512f" alone vectors of 256 bits multiply and add in two roundings where
// those of 512 and numbers alone have one, and which are taken depends on where arrays lie.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void rows_of_product(std::int64_t begin, std::int64_t end, std::int64_t n, std::int64_t k,
                     const double* a, const double* b, double* c) {
    // Tiles of 4 x 32 sums stay in registers: 53 GFLOP/s on one core of a Sapphire Rapids Xeon, where the
    // plain triple loop has 8.
    constexpr std::int64_t tile_rows = 4, tile_columns = 32;
    for (std::int64_t i = begin; i < end; i += tile_rows)
        for (std::int64_t j = 0; j < n; j += tile_columns) {
            if (end - i < tile_rows || n - j < tile_columns) {
                for (std::int64_t r = i; r < std::min(end, i + tile_rows); ++r)
                    for (std::int64_t p = 0; p < k; ++p)
                        for (std::int64_t t = j; t < std::min(n, j + tile_columns); ++t)
                            c[r * n + t] += a[r * k + p] * b[p * n + t];
                continue;
            }
            double sums[tile_rows][tile_columns] = {};
            for (std::int64_t p = 0; p < k; ++p)
                for (std::int64_t r = 0; r < tile_rows; ++r) {
                    const double factor = a[(i + r) * k + p];
                    for (std::int64_t t = 0; t < tile_columns; ++t) sums[r][t] += factor * b[p * n + j + t];
                }
            for (std::int64_t r = 0; r < tile_rows; ++r)
                for (std::int64_t t = 0; t < tile_columns; ++t) c[(i + r) * n + j + t] = sums[r][t];
        }
}

}  // namespace

Array product(std::int64_t m, std::int64_t n, std::int64_t k, const Array& a, const Array& b) {
    Array c(m * n, 0.0);
    // A thread takes some 30 us to start: for small products one is enough.
    const std::int64_t workers = m * n * k < 4'000'000 ? 1 : std::min(cpu::available_cores(), 8);
    const std::int64_t share = std::max<std::int64_t>(1, ((m + workers - 1) / workers + 3) / 4) * 4;
    core::for_each_in_parallel(
        (m + share - 1) / share, static_cast<int>(workers), [&](std::size_t item, int) {
            const std::int64_t begin = static_cast<std::int64_t>(item) * share;
            rows_of_product(begin, std::min(m, begin + share), n, k, a.data(), b.data(), c.data());
        });
    return c;
}

Array transposed(std::int64_t rows, std::int64_t columns, const Array& a) {
    Array result(a.size());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) result[c * rows + r] = a[r * columns + c];
    return result;
}

}  // namespace exec::oracle
