#include "sim/cost/pricing.h"

#include <algorithm>
#include <utility>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "model/segment.h"
#include "schedule/plan/planned_graph.h"
#include "schedule/plan/sequence_cut.h"
#include "schedule/program/exchange_signature.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

core::Bytes gradient_bytes(const schedule::RankProgram& list) {
    core::Bytes bytes;
    for (const schedule::Buffer& buffer : list.buffers)
        if (buffer.is_persistent && buffer.kind == schedule::MemoryKind::gradients) bytes += buffer.bytes;
    return bytes;
}

// The step, and the norms before it, work on this rank's shard of the bucket.
ComputePrice optimizer_price(const schedule::Program& program, const schedule::RankProgram& list,
                             const Instruction& step, const ComputeCost& compute) {
    const bool is_sharded = program.plan.sharding != schedule::Sharding::none;
    std::int64_t elements = 0, tensors = 0;
    for (std::size_t b = 0; b < list.buckets.size(); ++b) {
        if (step.bucket && std::cmp_not_equal(*step.bucket, b)) continue;
        const schedule::ParameterBucket& bucket = list.buckets[b];
        elements += is_sharded ? bucket.padded_elements / bucket.pieces : bucket.elements;
        tensors += is_sharded ? 1 : std::ssize(bucket.parameters);
    }
    return step.kind == InstructionKind::update_norm ? compute.update_norm(elements)
                                                     : compute.optimizer_step(elements, tensors);
}

// The host dispatches ahead of the device: what the device spends on long kernels or on collectives, the host
// uses to dispatch what comes next, and only when the device has caught up does it wait. Two clocks of one
// rank, the device's never before the host's.
class HostLead {
public:
    // The time an instruction adds to the device's clock.
    core::Seconds perform(const ComputePrice& work) {
        host_ += work.host;
        const core::Seconds end = std::max(device_ + work.device, host_) + work.blocked;
        const core::Seconds time = end - device_;
        device_ = end;
        if (work.blocked.value > 0) meet();
        return time;
    }
    // The device works on something that costs the host nothing to speak of.
    void pass(core::Seconds time) { device_ += time; }
    // The host waited for the device, or the device for something the host cannot run ahead of.
    void meet() { host_ = device_; }

private:
    core::Seconds device_, host_;
};

}  // namespace

std::optional<CostModels> make_cost_models(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                           const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                           const CostConstants& constants, KnownCandidates* known,
                                           const std::vector<std::int32_t>* first_like) {
    core::require(schedule::is_laid_out(graph, plan), "the graph is the plan's (planned_graph.h)");
    const int ranks_a_node = cluster::most_ranks_of_a_node(cluster, plan.layout.ranks());
    std::optional<ComputeCost> compute = ComputeCost::make(graph, cluster.instance.device, plan, diagnostics,
                                                           constants, ranks_a_node, first_like);
    if (!compute) return std::nullopt;
    CostModels models{std::move(*compute),
                      known ? CommunicationCost(plan, cluster, constants, *known)
                            : CommunicationCost(plan, cluster, constants),
                      {}};
    const int passes = schedule::passes_per_micro_batch(plan);
    if (passes == 1) return models;
    for (const model::ModelGraph& segment : model::SegmentGraphs(graph, passes)) {
        core::Diagnostics none;
        models.by_segment.push_back(*ComputeCost::make(segment, cluster.instance.device, plan, none,
                                                       constants, ranks_a_node, first_like));
    }
    return models;
}

PricedProgram price(const schedule::Program& program, CostModels& costs) {
    PricedProgram priced;
    for (const schedule::RankProgram& list : program.classes) {
        std::vector<core::Seconds>& durations = priced.durations.of.emplace_back();
        std::vector<core::Seconds>& host = priced.host.emplace_back();
        core::Flops& recompute_flops = priced.recompute_flops.emplace_back();
        durations.reserve(list.instructions.size());
        host.reserve(list.instructions.size());
        bool has_returned = false;
        HostLead clocks;
        for (const Instruction& instruction : list.instructions) {
            core::Seconds time;
            ComputePrice work;
            switch (instruction.kind) {
                case InstructionKind::compute:
                    work = costs.of(program, instruction)
                               .price(instruction.operators, instruction.phase, instruction.piece,
                                      instruction.pieces);
                    if (instruction.phase == schedule::ComputePhase::recompute) recompute_flops += work.flops;
                    break;
                case InstructionKind::update_norm:
                case InstructionKind::optimizer_step:
                    work = optimizer_price(program, list, instruction, costs.compute);
                    break;
                case InstructionKind::zero_gradients:
                case InstructionKind::gradient_norm:
                    work = costs.compute.zero(gradient_bytes(list));
                    break;  // one pass over the gradients
                case InstructionKind::send:
                    time = costs.communication.transfer(list.pipeline, *instruction.peer, instruction.bytes,
                                                        instruction.payload) +
                           costs.communication.assembly(*instruction.peer, instruction.bytes,
                                                        instruction.payload);
                    break;
                case InstructionKind::copy:
                    time = costs.communication.host_copy(instruction.bytes, instruction.loads);
                    break;
                case InstructionKind::receive:
                    clocks.meet();
                    break;  // ends when the sender's transfer has arrived
                case InstructionKind::collective:
                    time = costs.communication.collective(instruction.collective, instruction.group,
                                                          instruction.bytes, list.pipeline,
                                                          schedule::tied_ranks_of(list, instruction));
                    if (instruction.payload == schedule::PayloadKind::parameter &&
                        program.plan.sharding == schedule::Sharding::parameters && instruction.bucket)
                        time += costs.communication.gather_overhead(instruction.group, list.pipeline,
                                                                    list.buckets[*instruction.bucket], time);
                    if (instruction.payload == schedule::PayloadKind::parameter &&
                        program.plan.sharding == schedule::Sharding::optimizer && !has_returned) {
                        time += costs.communication.broadcasts_of_owners(list.pipeline);
                        has_returned = true;
                    }
                    if (instruction.stream == schedule::Stream::tensor) {
                        time = costs.of(program, instruction)
                                   .exposed({instruction.collective, instruction.group, instruction.payload,
                                             instruction.phase, instruction.operators, instruction.pieces},
                                            time);
                        // Of pieces all but the last run beside products.
                        if (is_last_piece(instruction)) clocks.pass(time);
                    }
                    break;
            }
            if (!costs.counts_hosts) work.host = core::Seconds(0);
            const core::Seconds worked = clocks.perform(work);
            durations.push_back(time + worked);
            host.push_back(worked - work.device);
        }
    }
    return priced;
}

}  // namespace sim
