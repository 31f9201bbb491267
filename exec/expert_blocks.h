// The layout of routed tokens at the ranks of their experts: block by block, one for every source rank and
// own expert, sources outermost.
#pragma once

#include <cstdint>
#include <vector>

namespace exec {

// The routed tokens that came from one rank for one expert of this rank.
struct ExpertBlock {
    std::int64_t expert = 0, first = 0, rows = 0;
};

// The blocks that are not empty. `rows` by source rank and own expert, `experts`: of this rank.
inline std::vector<ExpertBlock> expert_blocks(const std::vector<std::int64_t>& rows, std::int64_t experts) {
    std::vector<ExpertBlock> blocks;
    std::int64_t first = 0;
    for (std::size_t b = 0; b < rows.size(); ++b) {
        if (rows[b] > 0) blocks.push_back({static_cast<std::int64_t>(b) % experts, first, rows[b]});
        first += rows[b];
    }
    return blocks;
}

}  // namespace exec
