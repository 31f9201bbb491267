// The processes of one job: their hosts, their communicator, and a run of a Program on them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "exec/runtime/run.h"
#include "exec/transport/join_options.h"
#include "exec/transport/launch.h"
#include "exec/transport/process_communicator.h"

namespace exec::transport {

class World {
public:
    // Waits until all ranks are there. Throws core::MachineError when none comes within join.limit. (MPI
    // joins its ranks itself.) `time_limit`: the longest a rank waits for another from then on.
    World(const Launch& launch, core::Seconds time_limit, const JoinOptions& join);
    ~World();

    int rank() const { return communicator_->rank(); }
    int size() const { return communicator_->size(); }
    const std::vector<std::string>& hosts() const {
        return hosts_;
    }  // by rank; consecutive ranks share a host
    int host_count() const;
    int ranks_here() const;                                      // on this rank's host
    int rank_on_host() const;                                    // among them
    const std::string& transport() const { return transport_; }  // "MPI" or "TCP"
    ProcessCommunicator& communicator() { return *communicator_; }

    // Rank 0's number, on every rank. What rank 0 does alone before it knows it, profiling or training the
    // reference, may take longer than a rank should ever wait for another's message.
    int number_of_first(Tag tag, int number);
    // The last call, on every rank.
    void leave();

private:
    std::vector<std::string> hosts_;
    std::string transport_;
    std::unique_ptr<ProcessCommunicator> communicator_;
};

// This process performs its rank; rank 0 gets the measurements of all ranks, by its own clock.
std::optional<RunResult> run(const schedule::Program& program, const model::ModelGraph& graph,
                             std::shared_ptr<const DataSource> data, const RunOptions& options, World& world);

}  // namespace exec::transport
