// Which linear layers a plan in fp8 multiplies in fp8: one answer for the simulator, the executor's backends
// and their messages.
#pragma once

#include <optional>
#include <string>

#include "core/unsupported.h"
#include "model/operators/cost.h"

namespace model {

// Extents of a product that matrix units take in fp8: sixteen octets are the sixteen bytes that they load at
// a time.
inline constexpr std::int64_t fp8_multiple = 16;

// Why the products of this operator (forward, of its input's gradient and of its weight's gradient) are in
// the precision of activations and not in fp8. As in Transformer Engine the linear layers of the blocks run
// in fp8: neither the logits nor routers and experts, and no attention.
std::optional<core::Unsupported> fp8_unsupported(const ModelGraph& graph, OperatorId op,
                                                 const CostContext& context);

// The same for all linear layers of the model in one line: how many run in fp8, and which do not and why.
std::string fp8_summary(const ModelGraph& graph, const CostContext& context);

}  // namespace model
