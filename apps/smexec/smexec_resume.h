// Where a training begins: its folder of checkpoints, locked, and the checkpoint that it goes on from.
#pragma once

#include <optional>

#include "apps/smexec/smexec_job.h"
#include "apps/smexec/smexec_request.h"
#include "core/diagnostics_fwd.h"
#include "exec/transport/world.h"

namespace apps {

// After load_job, on every rank; `rank`: of this process, null when ranks are threads. Rank 0 alone commits,
// and so takes the folder's lock. A process reads what its rank needs, threads everything.
// With --resume the job begins at the newest whole checkpoint, each damaged one that is passed over a
// warning; at the beginning where there is none yet.
void prepare_checkpoints(const ExecutionRequest& request, std::optional<int> rank, ExecutionJob& job,
                         core::Diagnostics& diagnostics);

// Every rank calls, after prepare_checkpoints, and before one of the two below: whether all can begin, and
// mean the same folders; agree() tells who cannot.
bool agree_on_folders(exec::transport::World& world, const ExecutionRequest& request, bool can_begin,
                      core::Diagnostics& diagnostics);

// Every rank calls: all go on from the newest checkpoint that is whole for each of
// them. A rank whose own newest was another reads that one, or gets a diagnostic.
void agree_on_checkpoint(exec::transport::World& world, const ExecutionRequest& request,
                         std::optional<ExecutionJob>& job, core::Diagnostics& diagnostics);

// Instead of it, with --checkpoint-local: every rank's folder is found and, by the rank that leads it,
// locked; with --resume all go on from the newest checkpoint whose files are whole in these folders.
void find_host_checkpoint(exec::transport::World& world, const ExecutionRequest& request,
                          std::optional<ExecutionJob>& job, core::Diagnostics& diagnostics);

// Every rank calls after that, when all have agreed that the job begins: where a training goes on, files of
// its checkpoint that lie in fewer folders than --checkpoint-copies asks for are copied. Throws
// core::MachineError.
void complete_copies(exec::transport::World& world, const ExecutionRequest& request, ExecutionJob& job);

}  // namespace apps
