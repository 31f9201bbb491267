#include "sim/cost/framework/device_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/segment.h"
#include "schedule/plan/memory.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;
using schedule::MemoryKind;

// LL 0.5 MiB, LL128 4.7 MiB and Simple 4 MiB: the buffers of one connection at NCCL's defaults (NCCL_BUFFSIZE
// and init.cc).
constexpr double connection_mebibytes = 9.2;
// Ring in and out, tree up and down.
constexpr double connections_a_channel = 4;
// NCCL uses two channels where nothing but PCIe joins the devices, for a pair that sends and receives, and
// for each network card.
constexpr double channels_a_card = 2;
// Inside a node only the receiving side holds buffers: ring in, tree up and down; and each NVLink carries two
// channels (24 on an A100, 663 MiB: 688 are measured).
constexpr double connections_in_a_node = 3;
constexpr double channels_a_link = 2;

enum class Pass : std::uint8_t { forward, backward, input, weight };

Pass pass_of(ComputePhase phase, bool splits) {
    switch (phase) {
        case ComputePhase::forward: return Pass::forward;
        case ComputePhase::backward_input: return Pass::input;
        case ComputePhase::backward_weight: return Pass::weight;
        case ComputePhase::recompute: return splits ? Pass::input : Pass::backward;
        case ComputePhase::backward: return Pass::backward;
    }
    throw core::InternalError("broken promise: every phase belongs to a pass");
}

struct Extent {
    std::uint32_t first = 0, last = 0;
};

// First and last compute instruction of every pass: (stage, micro-batch, pass).
using Extents = std::map<std::tuple<std::int32_t, std::int32_t, Pass>, Extent>;

Extents extents_of(const schedule::RankProgram& list) {
    std::set<std::int32_t> splits;  // stages
    for (const Instruction& i : list.instructions)
        if (i.kind == InstructionKind::compute && i.phase == ComputePhase::backward_input)
            splits.insert(i.stage);
    Extents extents;
    auto latest = extents.end();  // a pass is mostly done before another begins
    for (std::uint32_t n = 0; n < list.instructions.size(); ++n) {
        const Instruction& i = list.instructions[n];
        if (i.kind != InstructionKind::compute) continue;
        const Extents::key_type key{i.stage, i.micro_batch, pass_of(i.phase, splits.contains(i.stage))};
        if (latest == extents.end() || latest->first != key)
            latest = extents.try_emplace(key, Extent{n, n}).first;
        latest->second.last = n;
    }
    return extents;
}

core::Bytes beyond(core::Bytes with, core::Bytes without) { return std::max(core::Bytes(0), with - without); }

core::Bytes workspace_of(Pass pass, const schedule::ActivationFootprint& with,
                         const schedule::ActivationFootprint& without) {
    switch (pass) {
        case Pass::forward: return beyond(with.forward_transient, without.forward_transient);
        case Pass::backward: return beyond(with.backward_transient, without.backward_transient);
        case Pass::input: return beyond(with.input_transient, without.input_transient);
        case Pass::weight: return beyond(with.weight_transient, without.weight_transient);
    }
    throw core::InternalError("broken promise: every pass has a workspace");
}

bool has_mixture(const model::ModelGraph& graph) {
    return std::any_of(graph.operators.begin(), graph.operators.end(),
                       [](const model::Operator& op) { return op.kind == model::OperatorKind::experts; });
}

class ClassMemoryWriter {
public:
    ClassMemoryWriter(const schedule::Program& program, const model::ModelGraph& graph,
                      const FrameworkMemory& framework, const schedule::RankProgram& list)
        : program_(program), plan_(program.plan), graph_(graph), framework_(framework), list_(list) {
        for (const schedule::ParameterBucket& bucket : list.buckets)
            elements_ += static_cast<double>(bucket.padded_elements);
    }

    // Footprints by stage and segment of a sequence.
    ExtraMemory write(const std::vector<schedule::ActivationFootprint>& with,
                      const std::vector<schedule::ActivationFootprint>& without) {
        const Extents extents = extents_of(list_);
        scale_activations(with, without);
        for (const auto& [key, extent] : extents) {
            const auto& [stage, micro_batch, pass] = key;
            const auto s = program_.row_of(stage, micro_batch);
            if (framework_.has_kernel_workspace)
                add(MemoryKind::workspace, workspace_of(pass, with[s], without[s]), extent);
            if (pass != Pass::forward || !framework_.keeps_stage_outputs) continue;
            // The output waits for its gradient, though another rank has a copy by then.
            for (const Pass back : {Pass::backward, Pass::input})
                if (const auto found = extents.find({stage, micro_batch, back}); found != extents.end())
                    add(MemoryKind::activations, without[s].sent, {extent.first, found->second.last});
        }
        std::optional<Extent> update;
        for (std::uint32_t n = 0; n < list_.instructions.size(); ++n)
            if (list_.instructions[n].kind == InstructionKind::optimizer_step ||
                list_.instructions[n].kind == InstructionKind::update_norm)
                update = Extent{update ? update->first : n, n};
        if (update) add_copies(*update);
        return std::move(memory_);
    }

private:
    void add(MemoryKind kind, core::Bytes bytes, Extent extent) {
        if (bytes.value > 0) memory_.buffers.push_back({kind, bytes, extent.first, extent.last});
    }
    double& scale_of(MemoryKind kind) { return memory_.scale[core::position_of(kind)]; }
    void hold(MemoryKind kind, double bytes) {
        memory_.persistent[core::position_of(kind)] += core::Bytes(bytes);
    }

    // Operator-level recomputation keeps other tensors than the Program's, whose instructions are those of
    // attention alone.
    void scale_activations(const std::vector<schedule::ActivationFootprint>& with,
                           const std::vector<schedule::ActivationFootprint>& without) {
        if (!framework_.recomputes_alternate_products || !plan_.runs_cores_again_alone()) return;
        core::Bytes kept, planned;
        std::set<std::int32_t> stages;
        for (const Instruction& i : list_.instructions)
            if (i.kind == InstructionKind::compute && stages.insert(i.stage).second)
                for (int part = 0; part < program_.passes_per_micro_batch(); ++part) {
                    kept += with[program_.row_of(i.stage, part)].saved;
                    planned += without[program_.row_of(i.stage, part)].saved;
                }
        if (planned.value > 0) scale_of(MemoryKind::activations) = kept / planned;
    }

    // Gradients of a rank that updates, in further buffers and types than the Program's.
    void add_copies(Extent update) {
        using schedule::Sharding;
        const double pieces = plan_.effective_shard_degree();
        double gradient = core::size_of(plan_.precision.gradients).value;
        if (framework_.keeps_mixtures_in_half && has_mixture(graph_)) {
            const auto scale = [&](MemoryKind kind, double bytes, double planned) {
                scale_of(kind) = bytes / planned;
            };
            scale(MemoryKind::parameters, 2, core::size_of(plan_.precision.parameters).value);
            scale(MemoryKind::gradients, 2, gradient);
            scale(MemoryKind::optimizer, 4,
                  schedule::state_bytes_per_parameter(plan_.optimizer).value +
                      (plan_.precision.has_master_parameters ? 4 : 0));
            gradient = 2;
        }
        const bool reduces = plan_.layout.data > 1;
        if (reduces && plan_.sharding == Sharding::none && framework_.copies_gradients_into_buckets)
            hold(MemoryKind::communication, elements_ * gradient);
        // What is reduced are the sums, where these are kept in a wider type.
        const bool sums_bf16 = plan_.precision.compute == core::DataType::bf16;
        const double reduced =
            std::max(gradient, sums_bf16 ? framework_.bf16_accumulator_bytes : framework_.accumulator_bytes);
        if (reduces && plan_.shards(Sharding::optimizer) && framework_.reduction_bucket_elements > 0)
            hold(MemoryKind::communication,
                 std::min(elements_, framework_.reduction_bucket_elements) * reduced);
        if (plan_.shards(Sharding::gradients) && framework_.keeps_whole_gradients) {
            std::set<std::int32_t> held;  // buckets: micro-batches add to the same gradient
            for (std::uint32_t n = 0; n < list_.instructions.size(); ++n) {
                // The Program gives a bucket's whole gradient back with its reduction; here the reductions
                // come together, after the last backward pass.
                const Instruction& i = list_.instructions[n];
                if (i.kind != InstructionKind::collective ||
                    i.collective != schedule::CollectiveKind::reduce_scatter || !i.bucket)
                    continue;
                if (!held.insert(*i.bucket).second) continue;
                const auto bucket = static_cast<double>(list_.buckets[*i.bucket].padded_elements);
                add(MemoryKind::gradients, core::Bytes((bucket - bucket / pieces) * gradient),
                    {n, update.first});
            }
        }
        if (plan_.fetches_parameters() && framework_.live_parameter_elements > 0) {
            // The Program has buffers for the layer being computed and the next.
            std::vector<double> units;
            for (const schedule::ParameterBucket& bucket : list_.buckets)
                units.push_back(static_cast<double>(bucket.padded_elements));
            std::sort(units.rbegin(), units.rend());
            const double gathered = (units.empty() ? 0 : units[0]) + (units.size() < 2 ? 0 : units[1]);
            const double on_device = plan_.keeps_parameters_on_hosts() ? 0 : 1 / pieces,
                         live = std::min(elements_ * (1 - on_device), framework_.live_parameter_elements);
            hold(MemoryKind::parameters,
                 std::max(0.0, live - gathered) * core::size_of(plan_.precision.parameters).value);
        }
        add_accumulators();
        if (reduces && plan_.layout.pipeline == 1 && plan_.sharding == Sharding::optimizer)
            hold(MemoryKind::communication, elements_ * framework_.flattened_bytes);
        // Casts of every weight, kept by autograd from forward to backward.
        if (framework_.keeps_full_parameters &&
            core::size_of(plan_.precision.parameters) > core::size_of(plan_.precision.compute) &&
            plan_.sharding == Sharding::none)
            hold(MemoryKind::parameters, elements_ * core::size_of(plan_.precision.compute).value);
        // ZeRO over one rank allocates as over many.
        const bool is_sharded = plan_.sharding != Sharding::none || !reduces,
                   is_bf16 =
                       plan_.precision.compute == core::DataType::bf16 && framework_.bf16_update_bytes > 0;
        const double bytes = is_bf16      ? framework_.bf16_update_bytes
                             : is_sharded ? framework_.sharded_update_bytes
                                          : framework_.update_bytes;
        if (plan_.precision.has_master_parameters && !plan_.updates_on_hosts())
            add(MemoryKind::optimizer,
                core::Bytes(elements_ / (plan_.shards(Sharding::optimizer) ? pieces : 1) * bytes), update);
    }

    // Sums of gradients of half-precision products, of a rank's share where they are divided. The Program's
    // are these sums where they are as wide; what comes beside is counted with the gradients that they are
    // made of.
    void add_accumulators() {
        const double products = core::size_of(plan_.precision.activations()).value,
                     gradients = core::size_of(plan_.precision.gradients).value;
        if (products >= core::size_of(core::DataType::fp32).value) return;
        const bool is_bf16 = plan_.precision.activations() == core::DataType::bf16;
        const double sums = framework_.accumulator_bytes + (is_bf16 ? framework_.bf16_accumulator_bytes : 0);
        if (sums <= 0) return;
        double elements = 0;
        for (const schedule::ParameterBucket& bucket : list_.buckets)
            if (!bucket.sums_on_host)
                elements += static_cast<double>(bucket.padded_elements) /
                            (plan_.shards(schedule::Sharding::gradients) ? bucket.pieces : 1);
        hold(MemoryKind::gradients, elements * std::max(0.0, products + sums - gradients));
    }

    const schedule::Program& program_;
    const schedule::Plan& plan_;
    const model::ModelGraph& graph_;
    const FrameworkMemory& framework_;
    const schedule::RankProgram& list_;
    double elements_ = 0;  // parameters of the rank
    ExtraMemory memory_;
};

}  // namespace

std::vector<ExtraMemory> extra_memory(const schedule::Program& program, const model::ModelGraph& graph,
                                      const model::SegmentGraphs& graphs, const FrameworkMemory& framework,
                                      model::Repetition* repetition) {
    const schedule::Plan& plan = program.plan;
    model::WorkspaceRules rules;
    // Sharded gradients have buffers of their own in the Program.
    rules.has_own_weight_gradients =
        !framework.fuses_accumulation && !plan.shards(schedule::Sharding::gradients);
    rules.has_in_place_loss = framework.has_in_place_loss;
    rules.recomputes_alternate_products = framework.recomputes_alternate_products;
    bool trains = false;
    for (const schedule::RankProgram& list : program.classes)
        for (const Instruction& i : list.instructions)
            trains = trains || (i.kind == InstructionKind::compute && i.phase != ComputePhase::forward);
    const std::vector<model::OperatorRange> stages = schedule::operators_of_stages(program);
    // By stage, and in it by segment.
    const auto footprints = [&](const model::WorkspaceRules* workspace) {
        std::vector<schedule::ActivationFootprint> all(stages.size() * graphs.size());
        for (std::size_t part = 0; part < graphs.size(); ++part) {
            std::vector<schedule::ActivationFootprint> of_part =
                schedule::activation_footprints(graphs[part], stages, plan, workspace, !trains, repetition);
            for (std::size_t s = 0; s < stages.size(); ++s)
                all[s * graphs.size() + part] = std::move(of_part[s]);
        }
        return all;
    };
    const std::vector<schedule::ActivationFootprint> with = footprints(&rules), without = footprints(nullptr);
    std::vector<ExtraMemory> memory;
    for (const schedule::RankProgram& list : program.classes)
        memory.push_back(ClassMemoryWriter(program, graph, framework, list).write(with, without));
    return memory;
}

core::Bytes communicator_memory(const cluster::Cluster& cluster, const std::vector<int>& ranks) {
    if (ranks.size() < 2) return core::Bytes(0);
    const cluster::InstanceType& instance = cluster.instance;
    const int a_node = cluster::ranks_of_a_node(cluster);
    std::map<int, int> on_node;
    for (const int rank : ranks) ++on_node[cluster::node_of_rank(cluster, rank)];
    const core::Bytes a_channel = core::mebibytes(connection_mebibytes * connections_a_channel);
    if (on_node.size() == 1) {
        // NVLinks a member can use: those of the pair, or of a larger group all that it has.
        const int first = ranks[0] % a_node, second = ranks[1] % a_node;
        int count = 0;
        for (const cluster::Link& link : instance.links) {
            if (link.kind != cluster::LinkKind::nvlink || (link.a != first && link.b != first)) continue;
            const int other = link.a == first ? link.b : link.a;
            if (ranks.size() > 2 || other == second || other >= instance.devices) count += link.count;
        }
        const double channels = count > 0 ? channels_a_link * count : channels_a_card;
        return std::min(instance.device.further_communicator_memory,
                        core::mebibytes(connection_mebibytes * connections_in_a_node * channels));
    }
    int most = 0, cards = 0;
    for (const auto& [node, count] : on_node) most = std::max(most, count);
    for (const cluster::Vertex& vertex : instance.vertices) cards += vertex.kind == cluster::VertexKind::nic;
    const double used = std::max(1.0, static_cast<double>(cards) * most / std::max(1, instance.devices));
    return std::min(instance.device.further_communicator_memory, a_channel * (channels_a_card * used));
}

namespace {

int representative(const schedule::Plan& plan, int pipeline) {
    return schedule::rank_of(plan.layout, {.data = 0, .tensor = 0, .pipeline = pipeline});
}

}  // namespace

core::Bytes least_outside_memory(const schedule::Plan& plan, int pipeline, const cluster::Cluster& cluster) {
    const cluster::DeviceSpec& device = cluster.instance.device;
    core::Bytes bytes = device.context_memory;
    const bool is_hybrid =
        plan.sharding != schedule::Sharding::none && plan.effective_shard_degree() < plan.layout.data;
    for (const schedule::GroupKind kind :
         {schedule::GroupKind::tensor, is_hybrid ? schedule::GroupKind::shard : schedule::GroupKind::data})
        bytes += communicator_memory(
            cluster, schedule::process_group(plan.layout, kind, representative(plan, pipeline),
                                             plan.effective_shard_degree()));
    return bytes;
}

core::Bytes outside_memory(const schedule::Program& program, int class_index, const cluster::Cluster& cluster,
                           const FrameworkMemory& framework) {
    const schedule::Plan& plan = program.plan;
    const schedule::RankProgram& list = program.classes[class_index];
    const cluster::DeviceSpec& device = cluster.instance.device;
    std::set<schedule::GroupKind> kinds;
    std::set<std::int32_t> neighbours;
    const Instruction* tied = nullptr;
    for (const Instruction& instruction : list.instructions) {
        if (instruction.kind == InstructionKind::collective &&
            instruction.group == schedule::GroupKind::tied_stages)
            tied = &instruction;
        else if (instruction.kind == InstructionKind::collective) kinds.insert(instruction.group);
        if (instruction.kind == InstructionKind::send || instruction.kind == InstructionKind::receive)
            neighbours.insert(*instruction.peer);
    }
    for (const Instruction& part : list.parts)
        if (part.kind == InstructionKind::collective) kinds.insert(part.group);
    const int rank = representative(plan, list.pipeline);
    // Two groups with the same members are one communicator, as in PyTorch, unless the framework makes them
    // apart.
    std::set<std::vector<int>> groups;
    for (const schedule::GroupKind kind : kinds)
        groups.insert(schedule::process_group(plan.layout, kind, rank, plan.effective_shard_degree()));
    if (tied) groups.insert(schedule::members_of(program, rank, *tied));
    core::Bytes bytes;
    for (const std::vector<int>& group : groups) bytes += communicator_memory(cluster, group);
    bytes += core::mebibytes(connection_mebibytes * connections_a_channel * channels_a_card) *
             static_cast<double>(neighbours.size());
    // Of all ranks, and of one replica of the model.
    std::vector<int> world, model;
    const int replica = schedule::coordinates_of(plan.layout, rank).data;
    for (int i = 0; i < plan.layout.ranks(); ++i) {
        world.push_back(i);
        if (schedule::coordinates_of(plan.layout, i).data == replica) model.push_back(i);
    }
    if (framework.has_whole_job_communicator) bytes += communicator_memory(cluster, world);
    if (framework.has_model_communicator) bytes += communicator_memory(cluster, model);
    // What the first communicator takes beyond a further one is the library itself.
    if (bytes.value > 0)
        bytes +=
            std::max(core::Bytes(0), device.first_communicator_memory - device.further_communicator_memory);
    return bytes + device.context_memory + framework.process_memory;
}

}  // namespace sim
