// How the processes of a job come together over TCP, beside what the launcher says.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/units.h"
#include "exec/transport/job_token.h"

namespace exec::transport {

struct JoinOptions {
    JobToken token;
    // An interface of every host ("eth0"), an address of this one, or "all". Nothing: where ranks reach rank
    // 0 (own_address, tcp/interface.h).
    std::optional<std::string> interface;
    core::Seconds limit{30};  // the longest that no rank may come while some are missing
    // Told of callers that were dropped, one a line; may be empty.
    std::function<void(const std::string&)> tell;
};

}  // namespace exec::transport
