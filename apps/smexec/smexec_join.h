// How this process joins the others of its job, from options and the environment.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "exec/transport/join_options.h"
#include "exec/transport/launch.h"

namespace apps {

struct JoinRequest {
    std::optional<std::string> interface, token_file;  // --interface, --token-file
    core::Seconds limit{30};                           // --join-limit
};

// Options that would have no effect are mistakes.
void check_not_joining(const JoinRequest& request, const std::string& why, core::Diagnostics& diagnostics);

// Nothing after a diagnostic. Rank 0 warns on `err` where the launcher gave no token; every rank tells there
// of callers that it drops.
std::optional<exec::transport::JoinOptions> join_options(const exec::transport::Launch& launch,
                                                         const JoinRequest& request,
                                                         core::Diagnostics& diagnostics, std::ostream& err);

}  // namespace apps
