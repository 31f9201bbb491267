// The states of the contiguous search: downsets of the precedence order, each with the ways to reach it that
// none other beats.
//
// Sharded by hash so that threads add to it at once. What it holds does not depend on the order of offers: of
// two ways one may dominate the other, and of equal ones the smaller parent stays.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace partition {

// Devices used, by class: 16 bits each, the highest of them kept free for comparison.
using DevicesUsed = std::uint64_t;
inline constexpr int bits_of_class = 16;
inline constexpr DevicesUsed one_of(std::size_t device_class) {
    return DevicesUsed{1} << (bits_of_class * device_class);
}
inline constexpr int used_of(DevicesUsed used, std::size_t device_class) {
    return static_cast<int>(used >> (bits_of_class * device_class) & 0x7fff);
}
inline constexpr int all_used(DevicesUsed used) {
    return used_of(used, 0) + used_of(used, 1) + used_of(used, 2) + used_of(used, 3);
}
// No class has more used in `a` than in `b`.
inline constexpr bool is_within(DevicesUsed a, DevicesUsed b) {
    constexpr DevicesUsed borrows = 0x8000800080008000u;
    return (((b | borrows) - a) & borrows) == borrows;
}

struct Way {
    DevicesUsed used = 0;
    double value = 0;          // largest load so far
    std::uint64_t parent = 0;  // hash of the downset before the last stage
    std::int8_t device_class = -1;
};

struct Downset {
    std::vector<std::uint64_t> bits;
    std::uint64_t hash = 0;
    std::vector<Way> ways;
};

class DownsetTable {
public:
    explicit DownsetTable(std::size_t words, std::size_t items);

    void offer(const std::uint64_t* set, std::uint64_t hash, int size, const Way& way);
    // Positions of all downsets of one size; complete once every smaller downset has made its offers.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> of_size(int size) const;
    Downset copy(std::pair<std::uint32_t, std::uint32_t> position) const;
    // By hash alone: 64 bits of Zobrist keys; the caller checks what it gets.
    bool find(std::uint64_t hash, Downset& found) const;

private:
    static constexpr std::size_t shard_count = 64;
    struct Shard {
        mutable std::mutex mutex;
        std::vector<std::uint64_t> pool, hashes;
        std::vector<std::vector<Way>> ways;
        std::vector<std::int32_t> slots = std::vector<std::int32_t>(16, -1);
        std::vector<std::vector<std::uint32_t>> by_size;
    };
    std::int32_t find_in(const Shard& shard, const std::uint64_t* set, std::uint64_t hash) const;
    Downset copy_of(const Shard& shard, std::size_t i) const;

    std::size_t words_;
    std::array<Shard, shard_count> shards_;
};

}  // namespace partition
