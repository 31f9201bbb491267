// The states of the contiguous search: downsets of the precedence order, each with its nondominated labels.
//
// A label is a sequence of stages that ends at the downset, as in label-setting shortest paths: devices used
// and the largest load. One label dominates another when it uses no more devices of any class and has no
// larger load. The table is sharded by hash so that threads add to it at once. What it holds does not depend
// on the order of offers: of equal labels the one with the smaller parent stays.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
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

// Of the label that no stage leads to, the empty downset's.
inline constexpr std::uint8_t no_class = 0xff;

struct Label {
    DevicesUsed used = 0;
    double value = 0;                      // largest load so far
    std::uint64_t parent = 0;              // hash of the downset before the last stage
    std::uint8_t device_class = no_class;  // of the last stage; no optional: there are millions of labels
};

struct Downset {
    std::vector<std::uint64_t> bits;
    std::uint64_t hash = 0;
    std::vector<Label> labels;
};

class DownsetTable {
public:
    explicit DownsetTable(std::size_t words, std::size_t items);

    void offer(const std::uint64_t* set, std::uint64_t hash, std::size_t size, const Label& label);
    // Positions of all downsets of one size; complete once every smaller downset has made its offers.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> of_size(std::size_t size) const;
    Downset copy(std::pair<std::uint32_t, std::uint32_t> position) const;
    // By hash alone: 64 bits of Zobrist keys; the caller checks what it gets.
    std::optional<Downset> find(std::uint64_t hash) const;

private:
    static constexpr std::size_t shard_count = 64;
    static constexpr std::uint32_t empty_slot = 0xffffffff;
    struct Shard {
        mutable std::mutex mutex;
        std::vector<std::uint64_t> pool, hashes;
        std::vector<std::vector<Label>> labels;
        std::vector<std::uint32_t> slots = std::vector<std::uint32_t>(16, empty_slot);
        std::vector<std::vector<std::uint32_t>> by_size;
    };
    // Position in the shard, or empty_slot. Any set of that hash where `set` is null.
    std::uint32_t find_in(const Shard& shard, const std::uint64_t* set, std::uint64_t hash) const;
    Downset copy_of(const Shard& shard, std::size_t i) const;

    std::size_t words_;
    std::array<Shard, shard_count> shards_;
};

}  // namespace partition
