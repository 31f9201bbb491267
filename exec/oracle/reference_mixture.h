// A mixture of experts in the oracle, one routed token after the other.
#pragma once

#include "exec/oracle/reference_operators.h"
#include "model/model_graph.h"

namespace exec::oracle {

void mixture_forward(Context& context, const model::Operator& op);
void mixture_backward(Context& context, const model::Operator& op);

}  // namespace exec::oracle
