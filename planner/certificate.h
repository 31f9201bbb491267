// The answer of a search, checked by another path: nothing here uses the search's bounds, collections or
// order of visits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/model_fwd.h"
#include "planner/search.h"

namespace planner {

// What an answer claims of its first plan. Values are of the objective, smaller is better.
struct Claim {
    std::size_t target = 0;
    schedule::Plan plan;  // with its partition
    double value = 0, lower_bound = 0;
    bool is_proven = false;
    std::size_t space = 0, evaluated = 0, rejected = 0, pruned = 0, unvisited = 0;
};

struct CertificateCheck {
    std::vector<std::string> violations;  // none: the claim holds, as far as it was looked at
    std::size_t neighbours = 0;           // partitions by one cut beside the claimed one, simulated
    std::size_t sampled = 0;              // plans of the space looked at
    std::size_t bounded = 0;              // ... excluded by arithmetic alone
    std::size_t simulated = 0;            // ... simulated, with a partition moved at random
};

// Counts the space again; simulates the claimed plan in full, and with each of its cuts moved by one unit;
// draws plans of the space with a seed, bounds each by the operators' times on the device divided by the
// pipeline's ranks, and simulates those that the bound does not exclude. A claim that is not proven may be
// beaten, but not below its lower bound.
CertificateCheck check_claim(const model::ModelGraph& graph, const std::vector<Target>& targets,
                             const SearchRequest& request, const Claim& claim, std::size_t samples,
                             std::uint64_t seed);

}  // namespace planner
