// Where a graph's data flow can be cut in two: the states of PipeDream's dynamic program.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/hierarchical/hierarchical_placement.h"

namespace partition {

// A set of nodes closed under predecessors, with the totals of what lies in it.
struct DataFlowCut {
    std::vector<std::uint64_t> nodes;                     // bit set
    double compute = 0, parameters = 0, activations = 0;  // seconds, bytes, bytes
    double output = 0;  // bytes that cross, as PipeDream counts them: an output needed by a node that is no
                        // ancestor of some last node counts
    bool holds(std::size_t node) const { return nodes[node / 64] >> (node % 64) & 1; }
    bool lies_in(const DataFlowCut& other) const {
        for (std::size_t w = 0; w < nodes.size(); ++w)
            if (nodes[w] & ~other.nodes[w]) return false;
        return true;
    }
};

struct DataFlowCuts {
    std::vector<DataFlowCut> cuts;  // by (compute, number of nodes): a cut comes after all that lie in it;
                                    // the last holds every node
    bool is_complete = true;        // all of them, or only the prefixes of one topological order
};

// From the first source, by adding a successor of what is inside with all its ancestors. More than `most`:
// prefixes of the given order instead.
DataFlowCuts data_flow_cuts(const HierarchicalProblem& problem, std::size_t most);
// Of one set of nodes, closed under predecessors.
DataFlowCut data_flow_cut(const HierarchicalProblem& problem, const std::vector<char>& nodes);

}  // namespace partition
