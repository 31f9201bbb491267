// A text key of the work one operator does on one rank: equal keys, equal work. Measured operator times are
// filed under it.
#pragma once

#include <string>

#include "model/operators/cost.h"

namespace model {

// For example "linear x=[1024,2048] y=[1024,6144] bias b=4 fp32": kind, shapes on the rank and every
// attribute that decides the time.
std::string signature(const ModelGraph& graph, OperatorId op, const CostContext& context);

}  // namespace model
