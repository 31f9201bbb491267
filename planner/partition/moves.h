// Partitions that differ from one by a unit or two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace planner {

using Cuts = std::vector<std::int32_t>;  // the first unit of each stage

// A unit goes to the stage before or behind; where there are few stages, two do.
std::vector<Cuts> near_moves(const Cuts& cuts, std::size_t units);
// A unit goes further: all cuts in between move one way. None where there are many stages.
std::vector<Cuts> far_moves(const Cuts& cuts, std::size_t units);

}  // namespace planner
