#include "partition/contiguous/downset_table.h"

#include <algorithm>
#include <tuple>

namespace partition {

namespace {

// Keeps the ways that no other beats.
void insert(std::vector<Way>& ways, const Way& way) {
    for (std::size_t i = 0; i < ways.size();) {
        Way& known = ways[i];
        if (known.used == way.used && known.value == way.value) {
            if (std::tie(way.parent, way.device_class) < std::tie(known.parent, known.device_class))
                known = way;
            return;
        }
        if (known.value <= way.value && is_within(known.used, way.used)) return;
        if (way.value <= known.value && is_within(way.used, known.used)) {
            known = ways.back();
            ways.pop_back();
        } else {
            ++i;
        }
    }
    ways.push_back(way);
}

}  // namespace

DownsetTable::DownsetTable(std::size_t words, std::size_t items) : words_(words) {
    for (Shard& shard : shards_) shard.by_size.resize(items + 1);
}

std::int32_t DownsetTable::find_in(const Shard& shard, const std::uint64_t* set, std::uint64_t hash) const {
    for (std::size_t slot = (hash >> 6) & (shard.slots.size() - 1);;
         slot = (slot + 1) & (shard.slots.size() - 1)) {
        const std::int32_t i = shard.slots[slot];
        if (i < 0) return -1;
        const std::size_t at = static_cast<std::size_t>(i);
        if (shard.hashes[at] == hash &&
            (!set || std::equal(set, set + words_, shard.pool.data() + at * words_)))
            return i;
    }
}

void DownsetTable::offer(const std::uint64_t* set, std::uint64_t hash, int size, const Way& way) {
    Shard& shard = shards_[hash % shard_count];
    const std::lock_guard lock(shard.mutex);
    const std::int32_t i = find_in(shard, set, hash);
    if (i >= 0) {
        insert(shard.ways[static_cast<std::size_t>(i)], way);
        return;
    }
    auto place = [&](std::uint64_t h, std::size_t index) {
        std::size_t slot = (h >> 6) & (shard.slots.size() - 1);
        while (shard.slots[slot] >= 0) slot = (slot + 1) & (shard.slots.size() - 1);
        shard.slots[slot] = static_cast<std::int32_t>(index);
    };
    if (2 * (shard.hashes.size() + 1) > shard.slots.size()) {
        shard.slots.assign(shard.slots.size() * 2, -1);
        for (std::size_t k = 0; k < shard.hashes.size(); ++k) place(shard.hashes[k], k);
    }
    const std::size_t index = shard.hashes.size();
    place(hash, index);
    shard.pool.insert(shard.pool.end(), set, set + words_);
    shard.hashes.push_back(hash);
    shard.ways.emplace_back(1, way);
    shard.by_size[static_cast<std::size_t>(size)].push_back(static_cast<std::uint32_t>(index));
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> DownsetTable::of_size(int size) const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> positions;
    for (std::size_t s = 0; s < shard_count; ++s)
        for (std::uint32_t i : shards_[s].by_size[static_cast<std::size_t>(size)])
            positions.emplace_back(static_cast<std::uint32_t>(s), i);
    return positions;
}

Downset DownsetTable::copy_of(const Shard& shard, std::size_t i) const {
    const std::uint64_t* begin = shard.pool.data() + i * words_;
    return {.bits = std::vector<std::uint64_t>(begin, begin + words_),
            .hash = shard.hashes[i],
            .ways = shard.ways[i]};
}

Downset DownsetTable::copy(std::pair<std::uint32_t, std::uint32_t> position) const {
    const Shard& shard = shards_[position.first];
    const std::lock_guard lock(shard.mutex);
    return copy_of(shard, position.second);
}

bool DownsetTable::find(std::uint64_t hash, Downset& found) const {
    const Shard& shard = shards_[hash % shard_count];
    const std::lock_guard lock(shard.mutex);
    const std::int32_t i = find_in(shard, nullptr, hash);
    if (i >= 0) found = copy_of(shard, static_cast<std::size_t>(i));
    return i >= 0;
}

}  // namespace partition
