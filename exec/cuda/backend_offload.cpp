// Activations that wait in the host's memory: one pinned block, sized while the run is planned, moved to and from on the stream of the copies alone.
#include <map>
#include <vector>

#include "core/diagnostics.h"
#include "exec/cuda/backend.h"

namespace exec::cuda {

// Every step puts and takes the same arrays in the same order, so a place is used again by copies that follow one another on their stream.
class CudaBackend::PinnedStore : public OffloadStore {
public:
    explicit PinnedStore(CudaBackend& backend) : backend_(backend) {}

    Handle put(const void* data, std::size_t bytes) override {
        std::size_t place = end_;
        if (auto& unused = unused_[bytes]; unused.empty()) {
            end_ += rounded(bytes);
        } else {
            place = unused.back();
            unused.pop_back();
        }
        backend_.read(data);
        if (backend_.plans()) {
            backend_.learnt_.offloaded = end_;
        } else {
            core::require(end_ <= backend_.plan_->offloaded, "a step offloads what was planned");
            backend_.machine_.download(backend_.stream(), backend_.offloaded_ + place, data, bytes);
        }
        return place;
    }
    void take(Handle place, void* into, std::size_t bytes) override {
        backend_.write(into);
        if (!backend_.plans()) backend_.machine_.upload(backend_.stream(), into, backend_.offloaded_ + place, bytes);
        unused_[bytes].push_back(place);
    }
    core::Bytes peak() const override { return core::Bytes(static_cast<double>(end_)); }

private:
    CudaBackend& backend_;
    std::size_t end_ = 0;
    std::map<std::size_t, std::vector<std::size_t>> unused_;  // by size
};

std::unique_ptr<OffloadStore> CudaBackend::make_offload_store(schedule::Offload offload, int) {
    if (offload == schedule::Offload::none) return nullptr;
    return std::make_unique<PinnedStore>(*this);
}

}  // namespace exec::cuda
