// What the host's threads do with the file is in order on a stream of its own.
#include "exec/cuda/backend/disk_transfers.h"

#include <exception>

namespace exec::cuda {

DiskTransfers::DiskTransfers(Machine& machine, Stream disk, int rank, std::size_t file_bytes,
                             std::size_t largest)
    : machine_(machine), disk_(disk), file_(rank) {
    file_.reserve(file_bytes);
    // One array each is being copied and moved to or from the file, in both directions.
    for (int i = 0; i < 4; ++i)
        places_.push_back(
            {machine.allocate_host(largest), machine.make_event(false), machine.make_event(false), false});
}

DiskTransfers::~DiskTransfers() {
    for (const PinnedArray& place : places_) machine_.release_host(place.host);
}

void DiskTransfers::begin_step() {
    next_ = next_place_ = 0;
    for (PinnedArray& place : places_) place.is_used = false;
}

// In order to be used again: all of the step before has ended, and what is captured stays as it is.
DiskTransfers::Transfer& DiskTransfers::next_transfer() {
    if (next_ == transfers_.size()) transfers_.push_back(std::make_unique<Transfer>());
    return *transfers_[next_++];
}

DiskTransfers::PinnedArray& DiskTransfers::next_place(Stream user) {
    PinnedArray& place = places_[next_place_++ % places_.size()];
    if (place.is_used) machine_.wait(user, place.free);
    place.is_used = true;
    return place;
}

void DiskTransfers::perform(void* transfer) {
    auto& own = *static_cast<Transfer*>(transfer);
    DiskTransfers& self = *own.owner;
    try {
        if (own.writes) self.file_.write(own.offset, own.host, own.bytes);
        else self.file_.read(own.offset, own.host, own.bytes);
    } catch (const std::exception& failure) {  // nothing may be thrown here
        const std::lock_guard lock(self.mutex_);
        if (!self.failure_) self.failure_ = Failure{own.instruction, failure.what()};
    }
}

void DiskTransfers::store(Stream copies, std::uint32_t instruction, std::uint64_t offset, const void* data,
                          std::size_t bytes) {
    PinnedArray& place = next_place(copies);
    machine_.download(copies, place.host, data, bytes);
    machine_.record(place.filled, copies);
    machine_.wait(disk_, place.filled);
    Transfer& transfer = next_transfer();
    transfer = {this, instruction, true, offset, place.host, bytes};
    machine_.call(disk_, perform, &transfer);
    machine_.record(place.free, disk_);
}

void DiskTransfers::load(Stream copies, std::uint32_t instruction, std::uint64_t offset, void* into,
                         std::size_t bytes) {
    PinnedArray& place = next_place(disk_);
    Transfer& transfer = next_transfer();
    transfer = {this, instruction, false, offset, place.host, bytes};
    machine_.call(disk_, perform, &transfer);
    machine_.record(place.filled, disk_);
    machine_.wait(copies, place.filled);
    machine_.upload(copies, into, place.host, bytes);
    machine_.record(place.free, copies);
}

std::optional<DiskTransfers::Failure> DiskTransfers::failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
}

}  // namespace exec::cuda
