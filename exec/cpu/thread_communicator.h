// Ranks as threads of one process: a message is the sender's own array, which the receiver reads; nothing is
// copied on the way.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/units.h"
#include "exec/transport/communicator.h"

namespace exec::cpu {

// The mailboxes of all ranks. Outlives its communicators.
class ThreadNetwork {
public:
    // `time_limit`: the longest any rank may wait for another. `spins`: waiting threads poll a moment before
    // they sleep (when every rank has a core of its own).
    ThreadNetwork(int ranks, core::Seconds time_limit, bool spins);
    ~ThreadNetwork();
    std::unique_ptr<Communicator> communicator(int rank);
    // Wakes every waiting rank with Stopped. The first reason stays.
    void stop(const std::string& reason);

private:
    friend class ThreadCommunicator;
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace exec::cpu
