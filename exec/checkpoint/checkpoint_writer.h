// Checkpoints written beside the training: a step's state is copied, a thread of the rank writes it while the
// next steps run, and it is committed at the first step that finds all ranks' files there. Where hosts share
// no folder, copies of files for other hosts are sent by that thread too.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "exec/checkpoint/checkpoint.h"
#include "exec/data.h"
#include "exec/runtime/bucket_state.h"
#include "exec/runtime/run.h"
#include "exec/transport/communicator.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

// One a rank; every rank makes the same calls at the same steps. Two states at most are held: one that is
// being written, and one that waits for it.
class CheckpointWriter {
public:
    // Starts the thread, which inherits the caller's cores: make it before the rank is bound to one. All
    // arguments must outlive it.
    CheckpointWriter(Communicator& communicator, const schedule::Program& program,
                     const model::ModelGraph& graph, const RunOptions& options, const DataSource& data);
    ~CheckpointWriter();  // waits for the file at hand; what is not committed does not count
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Copies the state after `step` completed steps, commits the checkpoint before it, and begins to write.
    // `losses`: so far by step, empty where the rank knows none.
    void save(std::int64_t step, const std::vector<BucketState>& buckets, const std::vector<double>& losses,
              const std::optional<LossScaling>& scaling);
    // Before every step: commits when all ranks have written.
    void commit_if_written();
    // Waits for it. This and the others throw core::MachineError with path and the system's words when a file
    // could not be written.
    void commit();
    std::optional<std::int64_t> committed() const { return committed_; }  // the newest step

private:
    struct Pending {
        std::int64_t step = 0;
        std::vector<double> losses;
        std::optional<LossScaling> scaling;
    };
    void work();
    CheckpointFile write(std::int64_t step, const std::vector<StateRecord>& records);
    void commit_in_host_folders(const CheckpointManifest& manifest);
    bool is_written();

    Communicator& communicator_;
    const schedule::Program& program_;
    const model::ModelGraph& graph_;
    const RunOptions& options_;
    const DataSource& data_;
    std::optional<Pending> pending_;  // begun and not committed
    std::optional<std::int64_t> committed_;
    std::uint64_t questions_ = 0;  // commit_if_written with something pending

    std::mutex mutex_;  // for what follows
    std::condition_variable changed_;
    std::optional<std::vector<StateRecord>> records_;  // to write
    std::int64_t step_ = 0;                            // theirs
    std::optional<CheckpointFile> file_;               // written
    std::exception_ptr failure_;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace exec
