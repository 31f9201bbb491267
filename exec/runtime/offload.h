// Stores for activations that wait outside a rank's own memory: the host's memory, or an unnamed file of the
// rank. A backend whose arrays the host cannot read has a store of its own (Backend::make_offload_store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "exec/file_descriptor.h"
#include "exec/runtime/memory.h"
#include "schedule/plan/plan.h"

namespace exec {

class OffloadStore {
public:
    using Handle = std::uint64_t;
    virtual ~OffloadStore() = default;
    virtual Handle put(const void* data, std::size_t bytes) = 0;
    // Copies back what was put, and forgets it.
    virtual void take(Handle handle, void* into, std::size_t bytes) = 0;
    // Most that was held at a time.
    virtual core::Bytes peak() const = 0;
};

// Offsets in one block or file. One that is given back is used again for arrays of the same size.
class FreeList {
public:
    std::uint64_t take(std::size_t bytes);
    void give_back(std::uint64_t offset, std::size_t bytes) { unused_[bytes].push_back(offset); }
    std::uint64_t end() const { return end_; }

private:
    std::uint64_t end_ = 0;
    std::map<std::size_t, std::vector<std::uint64_t>> unused_;  // by size
};

// An unnamed file in TMPDIR that disappears with the process, however it ends. Calls throw
// core::MachineError with what was wanted and the system's word.
class OffloadFile {
public:
    explicit OffloadFile(int rank);

    void reserve(std::size_t bytes);  // so that a full disk is known before the first step; where the file
                                      // system cannot, nothing is done
    void write(std::uint64_t offset, const void* data, std::size_t bytes) const;
    void read(std::uint64_t offset, void* into, std::size_t bytes) const;

private:
    FileDescriptor file_;
};

// Null when nothing is offloaded. A file lies in TMPDIR and disappears with the process, however it ends.
std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int rank);

}  // namespace exec
