// Products of tensor-parallel layers in pieces beside their exchange (Plan::tensor_overlap; what Megatron-LM
// calls tp-comm-overlap, PyTorch asynchronous tensor parallelism): which rows a piece has.
//
// The exchange of a piece begins when its product has ended, while the next piece is computed. Rows are
// independent, so a piece of rows has the numbers that it has in the whole.
//
// An all-reduce takes rows that follow one another. A reduce-scatter gives every rank of the group a share of
// the rows: a piece has as many rows of each rank's share, and they lie together, one rank's after the other,
// pieces one after the other. Nothing but the exchange reads that array.
#pragma once

#include <cstdint>

namespace schedule {

// More are no use: the last piece alone is never beside a product.
inline constexpr int most_pieces = 64;

// Into how many pieces so many rows are cut.
inline int pieces_of(int wanted, std::int64_t rows) {
    return rows < wanted ? static_cast<int>(rows) : wanted;
}

struct RowRange {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
};

// Of `rows` in pieces that differ by a row at most.
inline RowRange rows_of_piece(std::int64_t rows, int piece, int pieces) {
    return {rows * piece / pieces, rows * (piece + 1) / pieces};
}

// As many rows at `count` places: `stride` rows from one place to the next in what is read, one after the
// other where they are written.
struct PieceRows {
    std::int64_t from = 0, to = 0, rows = 0;
    int count = 1;
    std::int64_t stride = 0;
    std::int64_t size() const { return rows * count; }
};

// Of a product of `rows` rows; `shares`: ranks among which its exchange scatters them, 1 for an all-reduce.
inline PieceRows piece_rows(std::int64_t rows, int shares, int piece, int pieces) {
    const std::int64_t share = rows / shares;
    const RowRange own = rows_of_piece(share, piece, pieces);
    return {own.begin, own.begin * shares, own.size(), shares, share};
}

}  // namespace schedule
