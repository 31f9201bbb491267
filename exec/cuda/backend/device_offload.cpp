#include "exec/cuda/backend/device_offload.h"

#include <algorithm>

#include "core/errors.h"

namespace exec::cuda {

// Every step puts and takes the same arrays in the same order, so a place is used again by transfers that
// follow one another.
class DeviceOffload::Store : public OffloadStore {
public:
    explicit Store(DeviceOffload& offload) : offload_(offload) {}

    Handle put(const void* data, std::size_t bytes) override {
        const Handle place = places_.take(rounded(bytes));
        offload_.work_.reads(data);
        if (offload_.work_.plans()) {
            OffloadSize& learnt = offload_.learnt_;
            learnt.most = places_.end();
            learnt.largest = std::max(learnt.largest, bytes);
        } else {
            core::require(places_.end() <= offload_.planned_.most, "a step offloads what was planned");
            store(place, data, bytes);
        }
        return place;
    }
    void take(Handle place, void* into, std::size_t bytes) override {
        offload_.work_.writes(into);
        if (!offload_.work_.plans()) load(place, into, bytes);
        places_.give_back(place, rounded(bytes));
    }
    core::Bytes peak() const override { return core::Bytes(places_.end()); }

private:
    void store(std::size_t place, const void* data, std::size_t bytes) {
        const Stream stream = offload_.work_.stream();
        if (offload_.disk_) offload_.disk_->store(stream, offload_.work_.number(), place, data, bytes);
        else if (offload_.host_) offload_.machine_.download(stream, offload_.host_ + place, data, bytes);
    }
    void load(std::size_t place, void* into, std::size_t bytes) {
        const Stream stream = offload_.work_.stream();
        if (offload_.disk_) offload_.disk_->load(stream, offload_.work_.number(), place, into, bytes);
        else if (offload_.host_) offload_.machine_.upload(stream, into, offload_.host_ + place, bytes);
    }

    DeviceOffload& offload_;
    FreeList places_;
};

std::unique_ptr<OffloadStore> DeviceOffload::make_store() { return std::make_unique<Store>(*this); }

void DeviceOffload::take_memory(const OffloadSize& planned, schedule::Offload offload,
                                std::optional<Stream> disk, int rank) {
    planned_ = planned;
    if (planned.most == 0) return;
    if (offload == schedule::Offload::host) host_ = static_cast<char*>(machine_.allocate_host(planned.most));
    else if (disk)
        disk_ = std::make_unique<DiskTransfers>(machine_, *disk, rank, planned.most, planned.largest);
}

void DeviceOffload::release() {
    disk_.reset();
    if (host_) machine_.release_host(host_);
    host_ = nullptr;
}

}  // namespace exec::cuda
