#include "sim/cost/pricing.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
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
                             const Instruction& step, const CostModels& costs) {
    const bool is_sharded = program.plan.sharding != schedule::Sharding::none;
    std::int64_t elements = 0, tensors = 0;
    for (std::size_t b = 0; b < list.buckets.size(); ++b) {
        if (step.bucket && std::cmp_not_equal(*step.bucket, b)) continue;
        const schedule::ParameterBucket& bucket = list.buckets[b];
        elements += is_sharded ? bucket.padded_elements / bucket.pieces : bucket.elements;
        tensors += is_sharded ? 1 : std::ssize(bucket.parameters);
    }
    if (costs.host_update.is_there()) {
        ComputePrice price;
        price.device = costs.host_update.of(static_cast<double>(elements));
        return price;
    }
    return step.kind == InstructionKind::update_norm ? costs.compute.update_norm(elements)
                                                     : costs.compute.optimizer_step(elements, tensors);
}

// The host dispatches ahead of the device: what the device spends on long kernels or on collectives, the host
// uses to dispatch what comes next, and only when the device has caught up does it wait. Two clocks of one
// rank, the device's never before the host's: what counts is how far apart they are.
class HostLead {
public:
    // The time an instruction adds to the device's clock.
    core::Seconds perform(const ComputePrice& work) {
        ahead_ -= work.host;
        waits_ = waits_ || work.device < -ahead_;
        const core::Seconds end = std::max(work.device, -ahead_) + work.blocked;
        ahead_ += end;
        if (work.blocked.value > 0) meet();
        return end;
    }
    // The device works on something that costs the host nothing to speak of.
    void pass(core::Seconds time) { ahead_ += time; }
    // The host waited for the device, or the device for something the host cannot run ahead of.
    void meet() {
        ahead_ = core::Seconds(0);
        has_met_ = true;
    }

    core::Seconds ahead() const { return ahead_; }
    void set_ahead(core::Seconds ahead) { ahead_ = ahead; }

    // Since the last forget(): has the device waited for the host, and has it been met?
    bool waits() const { return waits_; }
    bool has_met() const { return has_met_; }
    void forget() { waits_ = has_met_ = false; }

private:
    core::Seconds ahead_;  // the device's clock less the host's
    bool waits_ = false, has_met_ = false;
};

// What an instruction costs whatever came before it: time of a communication, or work that hosts dispatch.
struct Price {
    core::Seconds time;
    ComputePrice work;
};

// Of one class.
class ListPricer {
public:
    ListPricer(const schedule::Program& program, const schedule::RankProgram& list, CostModels& costs)
        : program_(program), list_(list), costs_(costs) {}

    // `joins`: some class of the Program has joined instructions.
    void price(PricedProgram& priced, bool joins) {
        std::vector<core::Seconds>& durations = priced.durations.of.emplace_back();
        std::vector<core::Seconds>& host = priced.host.emplace_back();
        durations.reserve(list_.instructions.size());
        host.reserve(list_.instructions.size());
        parts_.begin.assign(joins ? list_.instructions.size() : 0, Durations::Parts::none);
        for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
            const Instruction& instruction = list_.instructions[i];
            if (schedule::is_joined(instruction)) {
                durations.push_back(perform_joined(i));
                host.emplace_back();
                continue;
            }
            const Price price = price_of(instruction);
            recompute_flops_ += recompute_flops(instruction, price);
            const core::Seconds worked = perform(instruction, price);
            durations.push_back(price.time + worked);
            host.push_back(worked - price.work.device);
        }
        if (joins) priced.durations.parts.push_back(std::move(parts_));
        priced.recompute_flops.push_back(recompute_flops_);
    }

private:
    // Parts of one joined instruction, as they were performed with the host so far behind.
    struct Performed {
        core::Seconds ahead_before, ahead_after, total;
        bool is_free = false;  // the device waits for no host, nor where that is further ahead
        bool has_met = false;
        std::uint32_t begin = 0;  // of its times
    };
    struct JoinedPrice {
        std::vector<Price> parts;
        core::Flops recompute_flops;
        std::vector<Performed> performed;
    };

    // The time an instruction adds to the device's clock, beside that of its communication.
    core::Seconds perform(const Instruction& instruction, const Price& price) {
        if (instruction.kind == InstructionKind::receive) clocks_.meet();
        // Of pieces all but the last run beside products.
        if (instruction.kind == InstructionKind::collective &&
            instruction.stream == schedule::Stream::tensor && is_last_piece(instruction))
            clocks_.pass(price.time);
        return clocks_.perform(price.work);
    }

    core::Seconds perform_joined(std::uint32_t index) {
        const Instruction& joined = list_.instructions[index];
        JoinedPrice& price = price_of_joined(joined);
        recompute_flops_ += price.recompute_flops;
        const Performed* known = nullptr;
        for (const Performed& one : price.performed)
            if (one.ahead_before == clocks_.ahead() || (one.is_free && one.ahead_before < clocks_.ahead()))
                known = &one;
        if (!known) known = &perform_parts(joined, price);
        parts_.begin[index] = known->begin;
        clocks_.set_ahead(known->has_met || !known->is_free
                              ? known->ahead_after
                              : clocks_.ahead() + (known->ahead_after - known->ahead_before));
        return known->total;
    }

    const Performed& perform_parts(const Instruction& joined, JoinedPrice& price) {
        Performed& result = price.performed.emplace_back();
        result.begin = core::narrow<std::uint32_t>(parts_.times.size());
        result.ahead_before = clocks_.ahead();
        HostLead before = clocks_;
        clocks_.forget();
        PartClock clock;
        for (std::size_t k = 0; k < price.parts.size(); ++k) {
            const Instruction& part = list_.parts_of(joined)[k];
            const core::Seconds time = price.parts[k].time + perform(part, price.parts[k]);
            parts_.times.push_back(time);
            clock.end(part, clock.start(part) + time.value);
        }
        result.total = core::Seconds(clock.end());
        result.is_free = !clocks_.waits();
        result.has_met = clocks_.has_met();
        result.ahead_after = clocks_.ahead();
        clocks_ = before;
        return result;
    }

    JoinedPrice& price_of_joined(const Instruction& joined) {
        const auto [found, is_new] =
            joined_.try_emplace({joined.parts_begin, program_.segment_of(joined.micro_batch)});
        JoinedPrice& price = found->second;
        if (!is_new) return price;
        for (Instruction part : list_.parts_of(joined)) {
            part.micro_batch = joined.micro_batch;
            price.parts.push_back(price_of(part));
            price.recompute_flops += recompute_flops(part, price.parts.back());
        }
        return price;
    }

    static core::Flops recompute_flops(const Instruction& instruction, const Price& price) {
        return instruction.phase == schedule::ComputePhase::recompute ? price.work.flops : core::Flops(0);
    }

    Price price_of(const Instruction& instruction) {
        Price price;
        switch (instruction.kind) {
            case InstructionKind::compute:
                price.work = costs_.of(program_, instruction)
                                 .price(instruction.operators, instruction.phase, instruction.piece,
                                        instruction.pieces);
                break;
            case InstructionKind::update_norm:
            case InstructionKind::optimizer_step:
                price.work = optimizer_price(program_, list_, instruction, costs_);
                break;
            case InstructionKind::zero_gradients:
            case InstructionKind::gradient_norm:
                price.work = costs_.compute.zero(gradient_bytes(list_));
                price.work.device += costs_.host_update.reading(summed_on_host());
                break;  // one pass over the gradients
            case InstructionKind::send:
                price.time =
                    costs_.communication.transfer(list_.pipeline, *instruction.peer, instruction.bytes,
                                                  instruction.payload) +
                    costs_.communication.assembly(*instruction.peer, instruction.bytes, instruction.payload);
                break;
            case InstructionKind::copy:
                price.time = instruction.bucket
                                 ? costs_.communication.state_copy(instruction.bytes, instruction.loads)
                                 : costs_.communication.host_copy(instruction.bytes, instruction.loads,
                                                                  program_.plan.offload);
                // Gradients of the first micro-batch are the sum so far.
                if (instruction.bucket && !instruction.loads && instruction.micro_batch > 0)
                    price.time += costs_.host_update.adding(instruction.bytes);
                break;
            case InstructionKind::receive: break;  // ends when the sender's transfer has arrived
            case InstructionKind::collective: price.time = time_of_collective(instruction); break;
        }
        if (!costs_.counts_hosts) price.work.host = core::Seconds(0);
        return price;
    }

    core::Bytes summed_on_host() const {
        core::Bytes bytes;
        for (const schedule::ParameterBucket& bucket : list_.buckets)
            if (bucket.sums_on_host)
                bytes += core::size_of(program_.plan.precision.gradients) *
                         double(bucket.padded_elements / bucket.pieces);
        return bytes;
    }

    core::Seconds time_of_collective(const Instruction& instruction) {
        core::Seconds time =
            costs_.communication.collective(instruction.collective, instruction.group, instruction.bytes,
                                            list_.pipeline, schedule::tied_ranks_of(list_, instruction));
        if (instruction.payload == schedule::PayloadKind::parameter &&
            program_.plan.sharding == schedule::Sharding::parameters && instruction.bucket)
            time += costs_.communication.gather_overhead(instruction.group, list_.pipeline,
                                                         list_.buckets[*instruction.bucket], time);
        if (instruction.payload == schedule::PayloadKind::parameter &&
            program_.plan.sharding == schedule::Sharding::optimizer && !has_returned_) {
            time += costs_.communication.broadcasts_of_owners(list_.pipeline);
            has_returned_ = true;
        }
        if (instruction.stream != schedule::Stream::tensor) return time;
        return costs_.of(program_, instruction)
            .exposed({instruction.collective, instruction.group, instruction.payload, instruction.phase,
                      instruction.operators, instruction.pieces},
                     time);
    }

    const schedule::Program& program_;
    const schedule::RankProgram& list_;
    CostModels& costs_;
    HostLead clocks_;
    core::Flops recompute_flops_;
    bool has_returned_ = false;
    std::map<std::pair<std::uint32_t, int>, JoinedPrice> joined_;  // by first part and segment
    Durations::Parts parts_;
};

}  // namespace

std::optional<CostModels> make_cost_models(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                           const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                           const CostConstants& constants, KnownCandidates* known,
                                           const std::vector<std::int32_t>* first_like,
                                           const model::SegmentGraphs* graphs) {
    core::require(schedule::is_laid_out(graph, plan), "the graph is the plan's (planned_graph.h)");
    if (plan.updates_on_hosts() && lacks_host_bandwidth(cluster)) {
        diagnostics.error(
            {}, "plan.optimizer_offload",
            cluster.instance.name +
                " states no host_memory_bandwidth, and optimizer_offload = \"host\" updates there",
            "give [cluster] host_memory_bandwidth, or set optimizer_offload = \"none\"");
        return std::nullopt;
    }
    const int ranks_a_node = cluster::most_ranks_of_a_node(cluster, plan.layout.ranks());
    std::optional<ComputeCost> compute = ComputeCost::make(graph, cluster.instance.device, plan, diagnostics,
                                                           constants, ranks_a_node, first_like);
    if (!compute) return std::nullopt;
    CostModels models{std::move(*compute),
                      known ? CommunicationCost(plan, cluster, constants, *known)
                            : CommunicationCost(plan, cluster, constants),
                      {}};
    models.host_update = HostUpdate(plan, cluster, constants);
    const int passes = schedule::passes_per_micro_batch(plan);
    if (passes == 1) return models;
    std::optional<model::SegmentGraphs> made;
    if (!graphs) made.emplace(graph, passes);
    for (const model::ModelGraph& segment : graphs ? *graphs : *made) {
        core::Diagnostics none;
        models.by_segment.push_back(*ComputeCost::make(segment, cluster.instance.device, plan, none,
                                                       constants, ranks_a_node, first_like));
    }
    return models;
}

PricedProgram price(const schedule::Program& program, CostModels& costs) {
    PricedProgram priced;
    const bool joins = std::any_of(program.classes.begin(), program.classes.end(),
                                   [](const schedule::RankProgram& list) { return !list.parts.empty(); });
    for (const schedule::RankProgram& list : program.classes)
        ListPricer(program, list, costs).price(priced, joins);
    return priced;
}

}  // namespace sim
