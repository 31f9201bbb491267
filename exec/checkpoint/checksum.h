// XXH64 (Yann Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md): 64 bits that tell whether a file is
// what was written; `xxhsum -H64` gives the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace exec {

std::uint64_t checksum(std::span<const std::byte> data);

}  // namespace exec
