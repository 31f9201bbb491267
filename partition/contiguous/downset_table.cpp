#include "partition/contiguous/downset_table.h"

#include <algorithm>
#include <tuple>

namespace partition {

namespace {

// Keeps the labels that no other dominates.
void insert(std::vector<Label>& labels, const Label& label) {
    for (std::size_t i = 0; i < labels.size();) {
        Label& other = labels[i];
        if (other.used == label.used && other.value == label.value) {
            if (std::tie(label.parent, label.device_class) < std::tie(other.parent, other.device_class))
                other = label;
            return;
        }
        if (other.value <= label.value && is_within(other.used, label.used)) return;
        if (label.value <= other.value && is_within(label.used, other.used)) {
            other = labels.back();
            labels.pop_back();
        } else {
            ++i;
        }
    }
    labels.push_back(label);
}

}  // namespace

DownsetTable::DownsetTable(std::size_t words, std::size_t items) : words_(words) {
    for (Shard& shard : shards_) shard.by_size.resize(items + 1);
}

std::uint32_t DownsetTable::find_in(const Shard& shard, const std::uint64_t* set, std::uint64_t hash) const {
    for (std::size_t slot = (hash >> 6) & (shard.slots.size() - 1);;
         slot = (slot + 1) & (shard.slots.size() - 1)) {
        const std::uint32_t i = shard.slots[slot];
        if (i == empty_slot) return empty_slot;
        if (shard.hashes[i] == hash &&
            (!set || std::equal(set, set + words_, shard.pool.data() + i * words_)))
            return i;
    }
}

void DownsetTable::offer(const std::uint64_t* set, std::uint64_t hash, std::size_t size, const Label& label) {
    Shard& shard = shards_[hash % shard_count];
    const std::lock_guard lock(shard.mutex);
    if (const std::uint32_t i = find_in(shard, set, hash); i != empty_slot) {
        insert(shard.labels[i], label);
        return;
    }
    auto put = [&](std::uint64_t h, std::size_t index) {
        std::size_t slot = (h >> 6) & (shard.slots.size() - 1);
        while (shard.slots[slot] != empty_slot) slot = (slot + 1) & (shard.slots.size() - 1);
        shard.slots[slot] = static_cast<std::uint32_t>(index);
    };
    if (2 * (shard.hashes.size() + 1) > shard.slots.size()) {
        shard.slots.assign(shard.slots.size() * 2, empty_slot);
        for (std::size_t k = 0; k < shard.hashes.size(); ++k) put(shard.hashes[k], k);
    }
    const std::size_t index = shard.hashes.size();
    put(hash, index);
    shard.pool.insert(shard.pool.end(), set, set + words_);
    shard.hashes.push_back(hash);
    shard.labels.emplace_back(1, label);
    shard.by_size[size].push_back(static_cast<std::uint32_t>(index));
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> DownsetTable::of_size(std::size_t size) const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> positions;
    for (std::uint32_t s = 0; s < shard_count; ++s)
        for (std::uint32_t i : shards_[s].by_size[size]) positions.emplace_back(s, i);
    return positions;
}

Downset DownsetTable::copy_of(const Shard& shard, std::size_t i) const {
    const std::uint64_t* begin = shard.pool.data() + i * words_;
    return {.bits = std::vector<std::uint64_t>(begin, begin + words_),
            .hash = shard.hashes[i],
            .labels = shard.labels[i]};
}

Downset DownsetTable::copy(std::pair<std::uint32_t, std::uint32_t> position) const {
    const Shard& shard = shards_[position.first];
    const std::lock_guard lock(shard.mutex);
    return copy_of(shard, position.second);
}

std::optional<Downset> DownsetTable::find(std::uint64_t hash) const {
    const Shard& shard = shards_[hash % shard_count];
    const std::lock_guard lock(shard.mutex);
    const std::uint32_t i = find_in(shard, nullptr, hash);
    return i == empty_slot ? std::nullopt : std::optional(copy_of(shard, i));
}

}  // namespace partition
