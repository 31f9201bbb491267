#include "exec/checkpoint/checksum.h"

#include <bit>
#include <cstring>

namespace exec {

namespace {

constexpr std::uint64_t prime_1 = 0x9E3779B185EBCA87, prime_2 = 0xC2B2AE3D27D4EB4F,
                        prime_3 = 0x165667B19E3779F9, prime_4 = 0x85EBCA77C2B2AE63,
                        prime_5 = 0x27D4EB2F165667C5;

template <class T>
T read(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

std::uint64_t round(std::uint64_t accumulator, std::uint64_t lane) {
    return std::rotl(accumulator + lane * prime_2, 31) * prime_1;
}
std::uint64_t merge(std::uint64_t hash, std::uint64_t accumulator) {
    return (hash ^ round(0, accumulator)) * prime_1 + prime_4;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> data) {
    const std::byte* at = data.data();
    const std::byte* const end = at + data.size();
    std::uint64_t hash = prime_5;
    if (data.size() >= 32) {
        std::uint64_t a = prime_1 + prime_2, b = prime_2, c = 0, d = 0 - prime_1;
        for (; end - at >= 32; at += 32) {
            a = round(a, read<std::uint64_t>(at));
            b = round(b, read<std::uint64_t>(at + 8));
            c = round(c, read<std::uint64_t>(at + 16));
            d = round(d, read<std::uint64_t>(at + 24));
        }
        hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash += data.size();
    for (; end - at >= 8; at += 8)
        hash = std::rotl(hash ^ round(0, read<std::uint64_t>(at)), 27) * prime_1 + prime_4;
    if (end - at >= 4) {
        hash = std::rotl(hash ^ read<std::uint32_t>(at) * prime_1, 23) * prime_2 + prime_3;
        at += 4;
    }
    for (; at < end; ++at) hash = std::rotl(hash ^ static_cast<std::uint64_t>(*at) * prime_5, 11) * prime_1;
    hash = (hash ^ hash >> 33) * prime_2;
    hash = (hash ^ hash >> 29) * prime_3;
    return hash ^ hash >> 32;
}

}  // namespace exec
