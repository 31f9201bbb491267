// A pass of the contiguous search over all downsets at once: where they are few, pairs of them are compared
// faster than stages grow item by item, and memory that binds cannot lead it astray.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "partition/contiguous/contiguous_pass.h"
#include "partition/contiguous/search_graph.h"
#include "partition/deadline.h"
#include "partition/placement.h"

namespace partition {

// Every downset of the precedence order, smaller ones first, with the sums of what lies in it.
struct DownsetLattice {
    std::size_t size() const { return work.size(); }

    std::vector<std::uint64_t> bits;  // words each
    std::vector<double> work, cpu_work, memory, activations;
    std::vector<std::int32_t> items, cpu_only;
    std::vector<std::vector<std::uint32_t>> torn;  // transfers with ends on both sides
};
// Nothing when there are more than `most`.
std::optional<DownsetLattice> downset_lattice(const PlacementProblem& problem, const SearchGraph& graph,
                                              std::size_t most);

// As contiguous_pass.
PassResult lattice_pass(const PlacementProblem& problem, const SearchGraph& graph,
                        const DownsetLattice& lattice, double threshold, const Deadline& deadline);

}  // namespace partition
