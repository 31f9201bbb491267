// Activations that wait outside a GPU's memory: in one pinned block of the host's, sized while the run is
// planned, or behind a few pinned arrays on disk (disk_transfers.h). Device memory is copied on the stream of
// the copies alone.
#include "exec/cuda/backend.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/errors.h"

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
    core::Bytes peak() const override { return core::Bytes(places_.end()); }

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

void CudaBackend::check_disk() const {
    if (!disk_) return;
    if (const auto failure = disk_->failure())
        throw core::MachineError(fmt::format("rank {}: {}, in step {}, in: {}", rank_, failure->words, step_,
                                             activities_[failure->instruction]));
}

}  // namespace exec::cuda
