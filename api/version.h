// Which smsim this is.
#pragma once

namespace api {

extern const char* const version;  // "0.2.0"
extern const char* const commit;   // "55ce155, 2026-11-23"; "unknown" outside a checkout

}  // namespace api
