// The names of a model's parts, and ranges of them, for headers that need no more: a change of the graph or
// of the operators does not reach who includes this alone.
#pragma once

#include <cstdint>

#include "core/units.h"

namespace model {

using TensorId = core::Id<struct TensorTag>;
using ParameterId = core::Id<struct ParameterTag>;
using OperatorId = core::Id<struct OperatorTag>;

// A half-open range of operators in topological order.
struct OperatorRange {
    std::int32_t begin = 0, end = 0;
    std::int32_t size() const { return end - begin; }
    bool operator==(const OperatorRange&) const = default;
};

struct Tensor;
struct Parameter;
struct Operator;
struct Unit;
struct ModelGraph;
class Repetition;
class SegmentGraphs;
class KnownSegmentGraphs;

}  // namespace model
