// A plan made ready to run here: read, checked, lowered, agreed on by all ranks, predicted.
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/smexec/smexec_request.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/data.h"
#include "exec/file_descriptor.h"
#include "exec/profile/exchange_profile.h"
#include "exec/runtime/learning_rate.h"
#include "exec/transport/world.h"
#include "exec/weights/initial_weights.h"
#include "sim/evaluate.h"
#include "sim/scenario.h"

namespace apps {

struct ExecutionJob {
    sim::Scenario scenario;  // the partition is complete
    std::shared_ptr<const exec::DataSource> data;
    exec::LearningRateSchedule learning_rate;
    exec::EvaluationOptions evaluation;
    std::shared_ptr<const exec::InitialWeights> initial;  // null: seeded values
    cluster::Cluster here;  // the machine that runs, whatever the plan was made for
    std::vector<std::string> remarks;
    schedule::Program program;
    int steps = 0;                                    // of the whole training
    std::shared_ptr<const exec::Checkpoint> resumed;  // null at the beginning
    std::int64_t first_step = 0, sample_offset = 0;
    std::optional<exec::StateNeeds> needs;    // of this process's rank; nothing when ranks are threads
    std::vector<std::int64_t> damaged_steps;  // of checkpoints that were passed over
    bool is_finished = false;                 // the checkpoint has all steps behind it
    exec::FileDescriptor lock;                // of the folder of checkpoints, on the rank that leads it
    std::shared_ptr<const exec::HostFolders> host_folders;  // null: one folder for all
    std::vector<std::vector<int>> holders;  // exec::HostCheckpoint::holders of what it goes on from
    double ranks_a_core = 1;  // when several hosts are one machine's: more than 1 = they share its cores
    std::vector<exec::MeasuredExchange> exchanges;  // of ranks that are processes, on rank 0
    double profile_low = 1, profile_high = 1;       // exec::PlanProfile::low_share, high_share
    core::Seconds probe;                            // how fast the machine was when it was profiled

    const schedule::Plan& plan() const { return scenario.file.plan; }
};

// Reads and checks everything a rank needs but where it begins (smexec_resume.h). `processes`: how many the
// launcher started; 0 = ranks are threads.
std::optional<ExecutionJob> load_job(const ExecutionRequest& request, int processes,
                                     core::Diagnostics& diagnostics);

// A scenario's plan made whole for the cluster it runs on: partition and order chosen, lowered, verified.
// False after a diagnostic.
bool lower_plan(sim::Scenario& scenario, const cluster::Cluster& here, schedule::Program& program,
                std::vector<std::string>& remarks, core::Diagnostics& diagnostics);

// Why the state of all ranks cannot lie in the memory of the machines that run them, or empty. Asked before
// anything is allocated.
std::string too_large(const ExecutionJob& job);

// Every rank calls, whether its job could be read or not. True when all ranks are about to run the same
// Program; otherwise rank 0's diagnostics name the ranks that differ.
bool agree(exec::transport::World& world, const std::optional<ExecutionJob>& job,
           core::Diagnostics& diagnostics);

// For the choice of collectives, equal on every rank: where hosts have different numbers of ranks, all are
// taken for ranks of one.
int ranks_per_node(const exec::transport::World& world);

// Every rank calls before predict(): the hosts of the world and what lies between them take the place of the
// local CPU, when ranks are spread evenly.
void measure_here(ExecutionJob& job, exec::transport::World& world);

// From operator times measured here in a few seconds. Nothing after a diagnostic.
std::optional<sim::Evaluation> predict(ExecutionJob& job, const ExecutionRequest& request,
                                       core::Diagnostics& diagnostics);

}  // namespace apps
