// Between device memory and a file, through a few pinned arrays: nothing waits for the disk but the stream of
// the copies, and that only when all of the arrays are in use or what it loads has not been read yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/cuda/machine.h"
#include "exec/runtime/offload.h"

namespace exec::cuda {

class DiskTransfers {
public:
    // `disk`: the stream on which the file is read and written. No transfer may be under way any more when
    // this ends.
    DiskTransfers(Machine& machine, Stream disk, int rank, std::size_t file_bytes, std::size_t largest);
    ~DiskTransfers();
    DiskTransfers(const DiskTransfers&) = delete;
    DiskTransfers& operator=(const DiskTransfers&) = delete;

    void begin_step();  // all of the step before has ended
    void store(Stream copies, std::uint32_t instruction, std::uint64_t offset, const void* data,
               std::size_t bytes);
    void load(Stream copies, std::uint32_t instruction, std::uint64_t offset, void* into, std::size_t bytes);

    struct Failure {
        std::uint32_t instruction = 0;
        std::string words;
    };
    std::optional<Failure> failure() const;  // the first one

private:
    struct PinnedArray {
        void* host = nullptr;
        Event filled = nullptr, free = nullptr;
        bool is_used = false;  // in this step: events of others are none of its
    };
    struct Transfer {
        DiskTransfers* owner = nullptr;
        std::uint32_t instruction = 0;
        bool writes = false;
        std::uint64_t offset = 0;
        void* host = nullptr;
        std::size_t bytes = 0;
    };
    static void perform(void* transfer);  // on a thread of the machine's
    Transfer& next_transfer();
    PinnedArray& next_place(Stream user);

    Machine& machine_;
    const Stream disk_;
    OffloadFile file_;
    std::vector<PinnedArray> places_;
    std::vector<std::unique_ptr<Transfer>>
        transfers_;  // of a step, in order; a captured step goes by their addresses
    std::size_t next_ = 0, next_place_ = 0;
    mutable std::mutex mutex_;
    std::optional<Failure> failure_;
};

}  // namespace exec::cuda
