// What a node costs in a replicated stage, by Piper's model.
#pragma once

#include <vector>

#include "core/units.h"
#include "partition/replicated/replicated_placement.h"

namespace partition {

struct ConfigurationCost {
    core::Seconds time;             // per sample, with what the node sends, receives and reduces
    core::Bytes per_sample, fixed;  // memory of one device: per_sample * (samples in flight) + fixed
};

class ReplicatedCosts {
public:
    explicit ReplicatedCosts(const ReplicatedProblem& problem);

    // Of a node on `data` replicas in a stage that holds `inside`.
    ConfigurationCost of(std::size_t node, const NodeConfiguration& configuration, int data,
                         const std::vector<char>& inside) const;
    // All successors of the node lie in the set.
    bool may_lead(std::size_t node, const std::vector<char>& set) const;

private:
    const ReplicatedProblem& problem_;
    std::vector<std::vector<std::size_t>> incoming_, outgoing_;  // edges of a node
};

}  // namespace partition
