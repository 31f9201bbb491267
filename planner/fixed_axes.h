// What a search does not vary: a proof is of the covered axes (search_space.h) under these rules.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace planner {

// Axes in the words of the plan file, each with its rule: where a search looked at other partitions than the
// one that balances stages and where it did not, and where the first plan is refined (refinement.h) and where
// it is not.
std::vector<std::pair<std::string, std::string>> fixed_axes(bool covers_partitions, bool is_refined);

}  // namespace planner
