// Arrays that are to be cleared and are not yet. The first launch that writes all of a part writes it instead
// of adding to it. The rest is cleared before a launch reads it or adds to it.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace exec::cuda {

class PendingZeros {
public:
    struct Piece {
        char* begin;
        std::size_t bytes;
        bool operator==(const Piece&) const = default;
    };

    void add(void* data, std::size_t bytes) {
        cut(data, bytes);
        if (bytes > 0) pieces_[static_cast<char*>(data)] = bytes;
    }
    // True when all of it was pending; then it is no longer.
    bool take(void* data, std::size_t bytes) {
        auto* const begin = static_cast<char*>(data);
        const auto found = around(begin);
        if (found == pieces_.end() || begin + bytes > found->first + found->second) return false;
        cut(data, bytes);
        return true;
    }
    // What of it was pending, in order; it is no longer.
    std::vector<Piece> cut(void* data, std::size_t bytes) {
        auto *const begin = static_cast<char*>(data), *const end = begin + bytes;
        std::vector<Piece> result;
        if (bytes == 0) return result;
        auto at = around(begin);
        if (at == pieces_.end()) at = pieces_.lower_bound(begin);
        while (at != pieces_.end() && at->first < end) {
            const auto [first, size] = *at;
            char *const last = first + size, *const low = first < begin ? begin : first,
                        *const high = last < end ? last : end;
            at = pieces_.erase(at);
            if (low < high) result.push_back({low, static_cast<std::size_t>(high - low)});
            if (first < low) pieces_[first] = low - first;
            if (high < last) at = pieces_.emplace(high, static_cast<std::size_t>(last - high)).first;
        }
        return result;
    }
    // The array, or what is left of it, that begins here or around here.
    std::vector<Piece> cut_around(void* address) {
        const auto found = around(static_cast<char*>(address));
        return found == pieces_.end() ? std::vector<Piece>{} : cut(found->first, found->second);
    }
    std::vector<Piece> cut_all() {
        std::vector<Piece> result;
        for (const auto& [begin, bytes] : pieces_) result.push_back({begin, bytes});
        pieces_.clear();
        return result;
    }

private:
    std::map<char*, std::size_t>::iterator around(char* address) {
        auto after = pieces_.upper_bound(address);
        if (after == pieces_.begin()) return pieces_.end();
        --after;
        return address < after->first + after->second ? after : pieces_.end();
    }
    std::map<char*, std::size_t> pieces_;  // apart from one another
};

}  // namespace exec::cuda
