// What mpirun, torchrun and srun tell a process through its environment: which rank of how many it is, and
// where rank 0 listens.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"

namespace exec::transport {

struct Launch {
    bool is_mpi = false;  // MPI itself knows the rest
    int rank = 0, size = 1;
    std::string address;  // of rank 0
    int port = 0;
    std::string launcher;  // "torchrun", "Slurm", "Open MPI"
};

using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

// `wanted`: "threads", "mpi", "env" or empty: then what the environment shows, or threads. Nothing for
// threads, and after a diagnostic.
std::optional<Launch> find_launch(const std::string& wanted, const Environment& environment,
                                  core::Diagnostics& diagnostics);

// "node[01-03,7],login" -> "node01": the first host of a Slurm node list. Empty when the text has no such
// form.
std::string first_host(const std::string& node_list);

}  // namespace exec::transport
