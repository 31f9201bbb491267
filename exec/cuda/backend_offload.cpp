// Activations that wait outside a GPU's memory: in one pinned block of the host's, sized while the run is
// planned, or behind a few pinned arrays on disk. Device memory is copied on the stream of the copies alone;
// what the host's threads do with the file is in order on a stream of its own.
#include "exec/cuda/backend_offload.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cuda/backend.h"

namespace exec::cuda {

// Every step puts and takes the same arrays in the same order, so a place is used again by transfers that
// follow one another.
class CudaBackend::Store : public OffloadStore {
public:
    explicit Store(CudaBackend& backend) : backend_(backend) {}

    Handle put(const void* data, std::size_t bytes) override {
        const Handle place = places_.take(rounded(bytes));
        backend_.read(data);
        if (backend_.plans()) {
            backend_.learnt_.offloaded = places_.end();
            backend_.learnt_.transferred = std::max(backend_.learnt_.transferred, bytes);
        } else {
            core::require(places_.end() <= backend_.plan_->offloaded, "a step offloads what was planned");
            store(place, data, bytes);
        }
        return place;
    }
    void take(Handle place, void* into, std::size_t bytes) override {
        backend_.write(into);
        if (!backend_.plans()) load(place, into, bytes);
        places_.give_back(place, rounded(bytes));
    }
    core::Bytes peak() const override { return core::Bytes(static_cast<double>(places_.end())); }

private:
    void store(std::size_t place, const void* data, std::size_t bytes) {
        if (backend_.disk_)
            backend_.disk_->store(backend_.stream(), backend_.instruction_, place, data, bytes);
        else if (backend_.offloaded_)
            backend_.machine_.download(backend_.stream(), backend_.offloaded_ + place, data, bytes);
    }
    void load(std::size_t place, void* into, std::size_t bytes) {
        if (backend_.disk_)
            backend_.disk_->load(backend_.stream(), backend_.instruction_, place, into, bytes);
        else if (backend_.offloaded_)
            backend_.machine_.upload(backend_.stream(), into, backend_.offloaded_ + place, bytes);
    }

    CudaBackend& backend_;
    FreeList places_;
};

std::unique_ptr<OffloadStore> CudaBackend::make_offload_store(schedule::Offload offload, int) {
    if (offload == schedule::Offload::none) return nullptr;
    return std::make_unique<Store>(*this);
}

void CudaBackend::take_offload_memory() {
    if (plan_->offloaded == 0) return;
    if (program_.plan.offload == schedule::Offload::host)
        offloaded_ = static_cast<char*>(machine_.allocate_host(plan_->offloaded));
    else if (!settings_.rehearses)
        disk_ = std::make_unique<DiskTransfers>(machine_, stream_of(lanes_.count), rank_, plan_->offloaded,
                                                plan_->transferred);
}

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

void CudaBackend::check_disk() const {
    if (!disk_) return;
    if (const auto failure = disk_->failure())
        throw core::MachineError(fmt::format("rank {}: {}, in step {}, in: {}", rank_, failure->words, step_,
                                             activities_[failure->instruction]));
}

}  // namespace exec::cuda
