// Which linear layers a plan in fp8 multiplies in fp8: one answer for the simulator, the executor's backends
// and what they tell the user.
#pragma once

#include <string>

#include "model/operators/cost.h"

namespace model {

// Extents of a product that matrix units take in fp8: sixteen octets are the sixteen bytes that they load at
// a time.
inline constexpr std::int64_t fp8_multiple = 16;

// Why the products of this operator (forward, of its input's gradient and of its weight's) are in the
// precision of activations all the same, in words, or empty. As in Transformer Engine it is the linear layers
// of the blocks that run in fp8: neither the logits nor routers and experts, and no attention.
std::string fp8_obstacle(const ModelGraph& graph, OperatorId op, const CostContext& context);

// The same for all linear layers of the model in one line: how many run in fp8, and which do not and why.
std::string fp8_summary(const ModelGraph& graph, const CostContext& context);

}  // namespace model
