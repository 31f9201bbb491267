#include "exec/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "exec/checkpoint/checksum.h"
#include "exec/file_descriptor.h"

namespace exec {

std::optional<MappedFile> MappedFile::open(const std::string& path, core::Diagnostics& diagnostics,
                                           const core::SourceLocation& referrer, const std::string& key) {
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(referrer, key, fmt::format("{}: {}", key, message), hint);
        return std::nullopt;
    };
    const std::string name = "file " + core::in_quotes(path, 300);
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open())
        return refuse(fmt::format("cannot open {}: {}", name, std::strerror(errno)),
                      "paths in a plan are relative to its folder");
    struct stat status = {};
    if (::fstat(file.get(), &status) != 0)
        return refuse(fmt::format("cannot read {}: {}", name, std::strerror(errno)), "");
    if (!S_ISREG(status.st_mode)) return refuse(name + " is no regular file", "give the path of a file");
    const std::size_t size = status.st_size;
    if (size == 0) return refuse(name + " is empty", "give a file with samples");
    void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED)
        return refuse(fmt::format("cannot map {} of {} bytes: {}", name, size, std::strerror(errno)), "");
    return MappedFile(reinterpret_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string identity_of(std::span<const std::byte> content, std::size_t whole_bytes) {
    if (content.size() <= whole_bytes) return fmt::format("xxh64 {:016x}", checksum(content));
    constexpr std::size_t pieces = 4096, piece = std::size_t(64) << 10;
    core::require(content.size() >= 2 * piece, "pieces do not cover what is checked in pieces");
    std::vector<std::byte> sums;
    for (std::size_t i = 0; i < pieces; ++i) {
        // Without the product of two large numbers.
        const std::size_t last = content.size() - piece,
                          begin = last / (pieces - 1) * i + last % (pieces - 1) * i / (pieces - 1);
        const std::uint64_t sum = checksum(content.subspan(begin, piece));
        const auto* const octets = reinterpret_cast<const std::byte*>(&sum);
        sums.insert(sums.end(), octets, octets + sizeof sum);
    }
    return fmt::format("xxh64 {:016x} of {} pieces of {} bytes", checksum(sums), pieces, piece);
}

}  // namespace exec
