// Activations that wait outside a GPU's memory: in one pinned block of the host's, sized while the run is
// planned, or behind a few pinned arrays on disk (disk_transfers.h). Device memory is copied on the stream of
// the copies alone.
#pragma once

#include <memory>
#include <optional>

#include "exec/cuda/backend/disk_transfers.h"
#include "exec/cuda/backend/work_context.h"
#include "exec/cuda/run_plan.h"
#include "schedule/plan/plan.h"

namespace exec::cuda {

class DeviceOffload {
public:
    DeviceOffload(Machine& machine, WorkContext& work) : machine_(machine), work_(work) {}
    DeviceOffload(const DeviceOffload&) = delete;
    DeviceOffload& operator=(const DeviceOffload&) = delete;

    // Memory for what was planned. `disk`: the stream of transfers to a file; none: nothing is kept on disk.
    void take_memory(const OffloadSize& planned, schedule::Offload offload, std::optional<Stream> disk,
                     int rank);
    void release();

    std::unique_ptr<OffloadStore> make_store();
    const OffloadSize& learnt() const { return learnt_; }

    void begin_step() {
        if (disk_) disk_->begin_step();
    }
    bool uses_disk() const { return disk_ != nullptr; }
    std::optional<DiskTransfers::Failure> failure() const { return disk_ ? disk_->failure() : std::nullopt; }

private:
    class Store;

    Machine& machine_;
    WorkContext& work_;
    OffloadSize planned_, learnt_;
    char* host_ = nullptr;
    std::unique_ptr<DiskTransfers> disk_;
};

}  // namespace exec::cuda
