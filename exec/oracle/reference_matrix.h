// Double-precision matrix product of the oracle.
#pragma once

#include <cstdint>
#include <vector>

namespace exec::oracle {

using Array = std::vector<double>;

// m x k times k x n, rows stored one after another.
Array product(std::int64_t m, std::int64_t n, std::int64_t k, const Array& a, const Array& b);
Array transposed(std::int64_t rows, std::int64_t columns, const Array& a);

}  // namespace exec::oracle
