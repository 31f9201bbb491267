#include "sim/cost/host_memory.h"

#include <algorithm>
#include <vector>

#include "cluster/node.h"
#include "core/index/integers.h"
#include "sim/cost/framework/framework_lookup.h"

namespace sim {

core::Bytes most_offloaded(const schedule::RankProgram& list) {
    core::Bytes away, most;
    for (const schedule::Instruction& instruction : list.instructions) {
        if (instruction.kind != schedule::InstructionKind::copy || instruction.bucket) continue;
        away += instruction.loads ? core::Bytes(0) - instruction.bytes : instruction.bytes;
        most = std::max(most, away);
    }
    return most;
}

const char* what_is_offloaded(const schedule::Plan& plan) {
    const bool has_activations = plan.offload == schedule::Offload::host;
    if (!plan.updates_on_hosts()) return "activations";
    if (!plan.keeps_parameters_on_hosts())
        return has_activations ? "activations and optimizer state" : "optimizer state";
    return has_activations ? "activations, parameters and optimizer state" : "parameters and optimizer state";
}

core::Bytes state_bytes_on_host(const schedule::Plan& plan) {
    const core::Bytes all = schedule::optimizer_bytes_on_host(plan);
    const bool has_copy = !plan.keeps_parameters_on_hosts() || !plan.precision.has_master_parameters ||
                          !framework_traits(plan.framework).fetches_fp32_shards;
    return has_copy ? all : all - core::size_of(plan.precision.parameters);
}

core::Bytes optimizer_on_host(const schedule::Plan& plan, const schedule::RankProgram& list) {
    const core::Bytes each = state_bytes_on_host(plan);
    core::Bytes all;
    for (const schedule::ParameterBucket& bucket : list.buckets)
        all += each * static_cast<double>(bucket.padded_elements / bucket.pieces);
    return all;
}

core::Bytes offloaded_to_a_host(const schedule::Program& program, const cluster::Cluster& cluster) {
    const bool offloads = program.plan.offload == schedule::Offload::host;
    if (!offloads && !program.plan.updates_on_hosts()) return core::Bytes(0);
    std::vector<core::Bytes> of_class, of_node(cluster.nodes);
    for (const schedule::RankProgram& list : program.classes)
        of_class.push_back((offloads ? most_offloaded(list) : core::Bytes(0)) +
                           optimizer_on_host(program.plan, list));
    for (const std::int32_t rank : core::indices(program.class_of_rank))
        of_node[cluster::node_of_rank(cluster, rank)] += of_class[program.class_of_rank[rank]];
    return *std::max_element(of_node.begin(), of_node.end());
}

}  // namespace sim
