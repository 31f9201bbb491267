#include "exec/runtime/offload.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace exec {

namespace {

class HostStore : public OffloadStore {
public:
    explicit HostStore(int rank)
        : account_(std::make_shared<MemoryAccount>(fmt::format("host of rank {}", rank),
                                                   std::make_shared<HostBlocks>())) {}

    Handle put(const void* data, std::size_t bytes) override {
        BufferPointer buffer = make_buffer(account_, schedule::MemoryKind::activations, bytes);
        std::memcpy(buffer->data(), data, bytes);
        held_.emplace(++last_, std::move(buffer));
        return last_;
    }
    void take(Handle handle, void* into, std::size_t bytes) override {
        const auto found = held_.find(handle);
        core::require(found != held_.end() && found->second->bytes() == bytes, "what is taken back was put");
        std::memcpy(into, found->second->data(), bytes);
        held_.erase(found);
    }
    core::Bytes peak() const override { return account_->peak(); }

private:
    const std::shared_ptr<MemoryAccount> account_;
    std::map<Handle, BufferPointer> held_;
    Handle last_ = 0;
};

class DiskStore : public OffloadStore {
public:
    explicit DiskStore(int rank) : file_(rank) {}

    Handle put(const void* data, std::size_t bytes) override {
        const Handle offset = offsets_.take(bytes);
        file_.write(offset, data, bytes);
        return offset;
    }
    void take(Handle offset, void* into, std::size_t bytes) override {
        file_.read(offset, into, bytes);
        offsets_.give_back(offset, bytes);
    }
    core::Bytes peak() const override { return core::Bytes(offsets_.end()); }

private:
    OffloadFile file_;
    FreeList offsets_;
};

template <class Call>
void move(std::uint64_t offset, std::size_t bytes, const char* what, const Call& call) {
    for (std::size_t done = 0; done < bytes;) {
        const ssize_t moved = call(done, bytes - done);
        if (moved > 0) {
            done += moved;
        } else if (moved == 0 || errno != EINTR) {
            throw core::MachineError(fmt::format("offload to disk: cannot {} {} bytes at {}: {}", what, bytes,
                                                 offset, moved == 0 ? "end of file" : std::strerror(errno)));
        }
    }
}

}  // namespace

std::uint64_t FreeList::take(std::size_t bytes) {
    std::vector<std::uint64_t>& unused = unused_[bytes];
    if (unused.empty()) {
        end_ += bytes;
        return end_ - bytes;
    }
    const std::uint64_t offset = unused.back();
    unused.pop_back();
    return offset;
}

OffloadFile::OffloadFile(int rank) {
    std::error_code failure;
    std::string name =
        (std::filesystem::temp_directory_path(failure) / fmt::format("smexec-offload-{}-XXXXXX", rank))
            .string();
    if (failure)
        throw core::MachineError(
            fmt::format("offload to disk: no directory for temporary files: {}", failure.message()));
    file_ = FileDescriptor(mkstemp(name.data()));
    if (!file_.is_open())
        throw core::MachineError(
            fmt::format("offload to disk: cannot make {}: {}", name, std::strerror(errno)));
    unlink(name.c_str());
}

void OffloadFile::reserve(std::size_t bytes) {
    if (bytes == 0 || fallocate(file_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP ||
        errno == ENOSYS)
        return;
    throw core::MachineError(fmt::format("offload to disk: cannot reserve {}: {}",
                                         core::format(core::Bytes(bytes)), std::strerror(errno)));
}

void OffloadFile::write(std::uint64_t offset, const void* data, std::size_t bytes) const {
    move(offset, bytes, "write to", [&](std::size_t done, std::size_t left) {
        return pwrite(file_.get(), static_cast<const char*>(data) + done, left,
                      static_cast<off_t>(offset + done));
    });
}

void OffloadFile::read(std::uint64_t offset, void* into, std::size_t bytes) const {
    move(offset, bytes, "read from", [&](std::size_t done, std::size_t left) {
        return pread(file_.get(), static_cast<char*>(into) + done, left, static_cast<off_t>(offset + done));
    });
}

std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int rank) {
    switch (offload) {
        case schedule::Offload::none: return nullptr;
        case schedule::Offload::host: return std::make_unique<HostStore>(rank);
        case schedule::Offload::disk: return std::make_unique<DiskStore>(rank);
    }
    throw core::InternalError(fmt::format("no store for offload {}", static_cast<int>(offload)));
}

}  // namespace exec
