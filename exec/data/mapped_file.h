// A file's content without reading it: pages come from the disk when they are looked at, so that data may be
// larger than memory, and ranks of one host share them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/diagnostics_fwd.h"

namespace exec {

class MappedFile {
public:
    // A missing or unreadable file is diagnosed under `key`. The file must keep its length while it is
    // mapped: the system ends a process that reads behind a new end (SIGBUS).
    static std::optional<MappedFile> open(const std::string& path, core::Diagnostics& diagnostics,
                                          const core::SourceLocation& referrer, const std::string& key);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    std::size_t size() const { return size_; }
    std::span<const std::byte> bytes() const { return {data_, size_}; }

private:
    MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
    const std::byte* data_;
    std::size_t size_;
};

// Tells one content from another: of up to `whole_bytes` the checksum of all, of a larger one that of 4,096
// pieces of 64 KiB at equal distances, the first and the last among them. "xxh64 3f0c...", for larger ones
// with what it is of.
std::string identity_of(std::span<const std::byte> content, std::size_t whole_bytes);
// Every rank reads as much at its start: some seconds.
inline constexpr std::size_t most_whole_bytes = std::size_t(2) << 30;

}  // namespace exec
