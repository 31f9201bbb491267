// The wire over MPI. MPI itself stays in mpi_wire.cpp; a build without it has absent.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/transport/wire.h"

namespace exec::transport::mpi {

bool is_available();
// Starts MPI, once a process. Ranks are numbered so that those of one host follow one another; `hosts` is by
// that number. Throws core::MachineError.
std::unique_ptr<Wire> start(std::vector<std::string>& hosts);

}  // namespace exec::transport::mpi
