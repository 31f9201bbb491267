#include "sim/cost/host_memory.h"

#include <algorithm>
#include <vector>

#include "cluster/node.h"
#include "core/index/integers.h"

namespace sim {

core::Bytes most_offloaded(const schedule::RankProgram& list) {
    core::Bytes away, most;
    for (const schedule::Instruction& instruction : list.instructions) {
        if (instruction.kind != schedule::InstructionKind::copy) continue;
        away += instruction.loads ? core::Bytes(0) - instruction.bytes : instruction.bytes;
        most = std::max(most, away);
    }
    return most;
}

core::Bytes offloaded_to_a_host(const schedule::Program& program, const cluster::Cluster& cluster) {
    if (program.plan.offload != schedule::Offload::host) return core::Bytes(0);
    std::vector<core::Bytes> of_class, of_node(cluster.nodes);
    for (const schedule::RankProgram& list : program.classes) of_class.push_back(most_offloaded(list));
    for (const std::int32_t rank : core::indices(program.class_of_rank))
        of_node[cluster::node_of_rank(cluster, rank)] += of_class[program.class_of_rank[rank]];
    return *std::max_element(of_node.begin(), of_node.end());
}

}  // namespace sim
