// Values of parameters that do not depend on the plan: by seed, global name and global element.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/operator.h"
#include "schedule/plan/layout.h"

namespace exec {

// Consecutive elements of a parameter that a tensor-parallel rank holds: [global, global + count) lie at
// [local, local + count) of its share.
struct ElementRun {
    std::int64_t local = 0, global = 0, count = 0;
};
// The part of every parameter that a rank holds.
struct ParameterShare {
    int tensor_degree = 1, tensor_rank = 0;
    int expert_degree = 1, expert_rank = 0;  // of experts' parameters
};
ParameterShare share_of(const schedule::ParallelLayout& layout, const schedule::RankCoordinates& place);
// Ascending in `local`. A split dimension of several blocks (packed q, k, v; gate and up) is divided block by
// block. What no run covers is padding and zero.
std::vector<ElementRun> element_runs(const model::Parameter& parameter, const ParameterShare& share);

// A rank's share of the parameter at the start of training, on all cores that the caller may use.
void initialize(const model::Parameter& parameter, std::uint64_t seed, const std::vector<ElementRun>& runs,
                float* result);

// A key that depends on text, the same everywhere.
std::uint64_t key_of(std::uint64_t seed, std::string_view name);

}  // namespace exec
