#include "apps/smexec/smexec_join.h"

#include <ostream>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/transport/tcp/interface.h"

namespace apps {

void check_not_joining(const JoinRequest& request, const std::string& why, core::Diagnostics& diagnostics) {
    for (const auto& [option, value] :
         {std::pair{"--interface", request.interface}, std::pair{"--token-file", request.token_file}})
        if (value)
            diagnostics.error({}, option, fmt::format("{} is of --ranks-from env: {}", option, why),
                              "leave it out");
}

std::optional<exec::transport::JoinOptions> join_options(const exec::transport::Launch& launch,
                                                         const JoinRequest& request,
                                                         core::Diagnostics& diagnostics, std::ostream& err) {
    exec::transport::JoinOptions options;
    options.limit = request.limit;
    options.interface = request.interface;
    core::Diagnostics own;
    if (launch.is_mpi) check_not_joining(request, "MPI joins its ranks itself", own);
    if (own.has_errors()) {
        diagnostics.append(own);
        return std::nullopt;
    }
    if (launch.is_mpi || launch.size == 1) return options;
    options.token = exec::transport::find_token(launch, request.token_file, request.limit,
                                                exec::transport::environment_variable, own);
    if (request.interface) exec::transport::address_of_interface(*request.interface, own);
    if (own.has_errors()) {
        diagnostics.append(own);
        return std::nullopt;
    }
    options.tell = [&err, rank = launch.rank](const std::string& what) {
        err << fmt::format("rank {}: {}\n", rank, what) << std::flush;
    };
    if (!options.token.is_given() && launch.rank == 0)
        err << fmt::format(
            "warning: the launcher gave no token: until all ranks have come, whoever reaches port {} of {} "
            "can "
            "take a rank's place; SMEXEC_TOKEN or --token-file keeps strangers out\n",
            launch.port, launch.address);
    return options;
}

}  // namespace apps
