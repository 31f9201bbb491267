#include "api/reply.h"

#include <utility>

namespace api {

Reply refusal(core::Diagnostics diagnostics, Outcome outcome) {
    return {.outcome = outcome, .diagnostics = std::move(diagnostics)};
}

}  // namespace api
