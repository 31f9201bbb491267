// Which tokens of a sequence a rank of a context-parallel group has: the r-th part from the front and the
// r-th from the back of 2 x degree, so that under a causal mask every rank has the same number of scores to
// compute (Megatron-LM's split; Llama 3, arXiv 2407.21783, section 3.3.2).
#pragma once

#include <cstdint>
#include <vector>

namespace exec {

// Ascending.
inline std::vector<std::int32_t> places_of_tokens(std::int64_t tokens, int degree, int rank) {
    std::vector<std::int32_t> positions;
    if (degree == 1) {
        for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(t));
        return positions;
    }
    const std::int64_t part = tokens / (2 * degree);
    for (const std::int64_t which : {std::int64_t{rank}, std::int64_t{2 * degree - 1 - rank}})
        for (std::int64_t t = which * part; t < (which + 1) * part; ++t)
            positions.push_back(static_cast<std::int32_t>(t));
    return positions;
}

}  // namespace exec
