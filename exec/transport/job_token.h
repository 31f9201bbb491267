// The secret that the ranks of one job share, and strangers do not have.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "exec/transport/launch.h"

namespace exec::transport {

struct JobToken {
    std::string secret;  // empty: the launcher gave none, and whoever reaches a port can join
    bool is_given() const { return !secret.empty(); }
};

// From the file that `file` names (--token-file), else SMEXEC_TOKEN, else the file of SMEXEC_TOKEN_FILE; none
// where the launcher gave none, and for MPI, which joins its ranks itself. A file that is not there is made
// by rank 0, for its user's eyes alone, and the others wait for it, at most `limit`. A diagnostic where
// others may read the file, where a token is too short to be a secret, and where this build cannot use one.
JobToken find_token(const Launch& launch, const std::optional<std::string>& file, core::Seconds limit,
                    const Environment& environment, core::Diagnostics& diagnostics);

// A new one: 256 random bits in hexadecimal digits.
JobToken make_token();

}  // namespace exec::transport
