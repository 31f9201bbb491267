// What a search does not vary: a proof is of the covered axes (search_space.h) under these rules.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace planner {

struct SearchAccount;

// Axes in the words of the plan file, each with its rule, which depends on what the search did beside its
// space: other partitions than the one that balances stages, a refined first plan (refinement.h), layers of
// which some run again.
std::vector<std::pair<std::string, std::string>> fixed_axes(const SearchAccount& account);

}  // namespace planner
