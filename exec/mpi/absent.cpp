// Without MPI: the same header, and an answer in words.
#include "core/diagnostics.h"
#include "exec/mpi/mpi_wire.h"

namespace exec::mpi {

bool is_available() { return false; }
std::unique_ptr<process::Wire> start(std::vector<std::string>&) { throw core::MachineError("this build has no MPI"); }

}  // namespace exec::mpi
