// Without MPI: the same header, and an answer in words.
#include "core/errors.h"
#include "exec/transport/mpi/mpi_wire.h"

namespace exec::transport::mpi {

bool is_available() { return false; }
std::unique_ptr<transport::Wire> start(std::vector<std::string>&) {
    throw core::MachineError("this build has no MPI");
}

}  // namespace exec::transport::mpi
