// The wire over TCP: one connection between every two ranks, found through rank 0. What torchrun and srun
// start needs nothing else.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/transport/join_options.h"
#include "exec/transport/launch.h"
#include "exec/transport/wire.h"

namespace exec::transport {

// Every rank reports to rank 0 at launch.address:launch.port, learns where the others listen and connects to
// all of lower number; both ends of a connection prove the job's token to each other, and who cannot is
// dropped. Nobody listens any more when all are joined. Ranks are renumbered so that those of one host follow
// one another; `hosts` is by the new number. Throws core::MachineError when no rank comes within
// options.limit while some are missing.
std::unique_ptr<Wire> connect_all(const Launch& launch, const JoinOptions& options,
                                  std::vector<std::string>& hosts);

// A wire over connected stream sockets, by rank: descriptors that it owns, and nothing for the
// rank itself.
std::unique_ptr<Wire> make_socket_wire(int rank, const std::vector<std::optional<int>>& sockets);

}  // namespace exec::transport
