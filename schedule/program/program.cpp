#include "schedule/program/program.h"

#include <bit>

#include <fmt/core.h>

#include "core/random.h"
#include "model/segment.h"

namespace schedule {

std::string_view name_of(Stream stream) {
    switch (stream) {
        case Stream::compute: return "compute";
        case Stream::tensor: return "tensor";
        case Stream::pipeline_send: return "pipeline_send";
        case Stream::pipeline_receive: return "pipeline_receive";
        case Stream::data: return "data";
        case Stream::copy: return "copy";
    }
    return "";
}

std::string_view name_of(CollectiveKind kind) {
    switch (kind) {
        case CollectiveKind::all_reduce: return "all_reduce";
        case CollectiveKind::all_gather: return "all_gather";
        case CollectiveKind::reduce_scatter: return "reduce_scatter";
        case CollectiveKind::broadcast: return "broadcast";
        case CollectiveKind::all_to_all: return "all_to_all";
        case CollectiveKind::rotate: return "rotate";
    }
    return "";
}

std::string_view name_of(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::parameters: return "parameters";
        case MemoryKind::gradients: return "gradients";
        case MemoryKind::optimizer: return "optimizer";
        case MemoryKind::activations: return "activations";
        case MemoryKind::workspace: return "workspace";
        case MemoryKind::communication: return "communication";
        case MemoryKind::overhead: return "overhead";
    }
    return "";
}

std::string_view name_of(InstructionKind kind) {
    switch (kind) {
        case InstructionKind::compute: return "compute";
        case InstructionKind::send: return "send";
        case InstructionKind::receive: return "receive";
        case InstructionKind::collective: return "collective";
        case InstructionKind::optimizer_step: return "optimizer_step";
        case InstructionKind::zero_gradients: return "zero_gradients";
        case InstructionKind::gradient_norm: return "gradient_norm";
        case InstructionKind::copy: return "copy";
        case InstructionKind::update_norm: return "update_norm";
    }
    return "";
}

std::string_view name_of(ComputePhase phase) {
    switch (phase) {
        case ComputePhase::forward: return "forward";
        case ComputePhase::recompute: return "recompute";
        case ComputePhase::backward: return "backward";
        case ComputePhase::backward_input: return "backward_input";
        case ComputePhase::backward_weight: return "backward_weight";
    }
    return "";
}

std::string_view name_of(PayloadKind kind) {
    switch (kind) {
        case PayloadKind::none: return "none";
        case PayloadKind::activation: return "activation";
        case PayloadKind::activation_gradient: return "activation_gradient";
        case PayloadKind::parameter_gradient: return "parameter_gradient";
        case PayloadKind::parameter: return "parameter";
        case PayloadKind::loss: return "loss";
        case PayloadKind::gradient_norm: return "gradient_norm";
        case PayloadKind::update_norm: return "update_norm";
    }
    return "";
}

bool trains(const Program& program) {
    for (const RankProgram& list : program.classes)
        for (const Instruction& i : list.instructions)
            if (i.kind == InstructionKind::zero_gradients ||
                (i.kind == InstructionKind::compute && i.phase >= ComputePhase::backward))
                return true;
    return false;
}

BucketGroups groups_of(const ParallelLayout& layout, const ParameterBucket& bucket) {
    BucketGroups groups;
    groups.size = layout.data;
    if (!bucket.is_expert) return groups;
    groups.members = GroupKind::expert_replica;
    groups.shard = GroupKind::expert_shard;
    groups.size = layout.data / layout.expert;
    return groups;
}

std::vector<GroupKind> dividing_groups(const Plan& plan, const ParameterBucket& bucket) {
    std::vector<GroupKind> groups;
    // Shards of spread experts: a shard group holds each piece of every expert once (its degree is a multiple
    // of theirs, or the pieces are whole).
    if (bucket.pieces > 1) groups.push_back(GroupKind::shard);
    else if (bucket.is_expert) groups.push_back(GroupKind::expert_data);
    if (plan.layout.tensor > 1) groups.push_back(GroupKind::tensor);
    return groups;
}

std::vector<int> members_of(const Program& program, int rank, const Instruction& instruction) {
    const ParallelLayout& layout = program.plan.layout;
    if (instruction.group != GroupKind::tied_stages || !instruction.bucket)
        return process_group(layout, instruction.group, rank, program.plan.effective_shard_degree());
    const std::int32_t class_index = program.class_of_rank[rank];
    const ParameterBucket& bucket = program.classes[class_index].buckets[*instruction.bucket];
    RankCoordinates coordinates = coordinates_of(layout, rank);
    std::vector<int> members;
    for (const std::int32_t pipeline : bucket.tied_ranks) {
        coordinates.pipeline = pipeline;
        members.push_back(rank_of(layout, coordinates));
    }
    return members;
}

namespace {

// The letters of the schedule's text form (schedule_text.h); R is recomputation.
char letter_of(ComputePhase phase) {
    switch (phase) {
        case ComputePhase::forward: return 'F';
        case ComputePhase::recompute: return 'R';
        case ComputePhase::backward: return 'B';
        case ComputePhase::backward_input: return 'I';
        case ComputePhase::backward_weight: return 'W';
    }
    return '?';
}

std::string operators_text(const Instruction& i) {
    if (i.operators.size() == 0) return {};
    const std::string text = fmt::format(" ops [{}, {})", i.operators.begin, i.operators.end);
    if (i.pieces == 1) return text;
    return text + (is_of_weights(i) ? std::string(" weights")
                                    : fmt::format(" piece {} of {}", i.piece + 1, i.pieces));
}

}  // namespace

model::SegmentGraphs segment_graphs(const Program& program, const model::ModelGraph& graph) {
    return {graph, program.passes_per_micro_batch()};
}

std::vector<model::OperatorRange> operators_of_stages(const Program& program) {
    std::vector<model::OperatorRange> operators;
    for (const StageInfo& stage : program.stages) operators.push_back(stage.operators);
    return operators;
}

std::string micro_batch_text(const Program& program, std::int32_t micro_batch) {
    if (!program.cuts_sequences()) return std::to_string(micro_batch);
    return fmt::format("{}.{}", program.whole_micro_batch_of(micro_batch), program.segment_of(micro_batch));
}

std::string describe(const Program& program, int class_index, std::uint32_t index) {
    const Instruction& i = program.classes[class_index].instructions[index];
    std::string text = fmt::format("{} {}", index, name_of(i.kind));
    switch (i.kind) {
        case InstructionKind::compute:
            text += fmt::format(" {}{} stage {}{}", letter_of(i.phase),
                                micro_batch_text(program, i.micro_batch), i.stage, operators_text(i));
            break;
        case InstructionKind::send:
        case InstructionKind::receive:
            text += fmt::format(" {} {} stage {} {} rank {} {:.0f} B", name_of(i.payload),
                                micro_batch_text(program, i.micro_batch), i.stage,
                                i.kind == InstructionKind::send ? "to" : "from", i.peer.value_or(-1),
                                i.bytes.value);
            break;
        case InstructionKind::collective:
            text +=
                fmt::format(" {} {} over {}", name_of(i.collective), name_of(i.payload), name_of(i.group));
            if (i.bucket) text += fmt::format(" bucket {}{}", *i.bucket, i.on_shard ? " (shard)" : "");
            if (i.micro_batch >= 0)
                text += fmt::format(" {}{}", letter_of(i.phase), micro_batch_text(program, i.micro_batch));
            if (i.stage >= 0) text += fmt::format(" stage {}", i.stage);
            text += operators_text(i) + fmt::format(" {:.0f} B", i.bytes.value);
            break;
        case InstructionKind::optimizer_step:
        case InstructionKind::update_norm:
            if (i.micro_batch >= 0) text += fmt::format(" {}", i.micro_batch);
            text += i.bucket ? fmt::format(" bucket {}", *i.bucket) : std::string(" all buckets");
            break;
        case InstructionKind::copy:
            if (i.bucket) {
                text += fmt::format(" {} {} bucket {} {:.0f} B", i.loads ? "in" : "out", name_of(i.payload),
                                    *i.bucket, i.bytes.value);
                break;
            }
            text += fmt::format(" {} {} stage {}{} {:.0f} B", i.loads ? "in" : "out", i.micro_batch, i.stage,
                                operators_text(i), i.bytes.value);
            break;
        case InstructionKind::zero_gradients:
        case InstructionKind::gradient_norm: break;
    }
    return text;
}

namespace {

class Hash {
public:
    void add(std::uint64_t value) { state_ = core::mix64(state_ ^ value) + 0x9E3779B97F4A7C15ull; }
    void add(std::int64_t value) { add(static_cast<std::uint64_t>(value)); }
    void add(int value) { add(std::int64_t{value}); }
    void add(core::Bytes bytes) { add(std::bit_cast<std::uint64_t>(bytes.value)); }
    std::uint64_t value() const { return state_; }

private:
    std::uint64_t state_ = 0x736D73696Dull;
};

// How the hash sees an index that is absent.
constexpr std::int32_t absent = -1;

void add_instruction(Hash& hash, const RankProgram& list, const Instruction& i) {
    // The small fields share one word: hashing a large Program then takes only a few mixes per instruction.
    hash.add(std::uint64_t{core::position_of(i.kind)} | std::uint64_t{core::position_of(i.stream)} << 8 |
             std::uint64_t{core::position_of(i.phase)} << 16 |
             std::uint64_t{core::position_of(i.collective)} << 24 |
             static_cast<std::uint64_t>(i.group) << 32 | std::uint64_t{core::position_of(i.payload)} << 40 |
             std::uint64_t{i.on_shard} << 48 | std::uint64_t{i.loads} << 49 |
             (i.pieces > 1 ? std::uint64_t{i.piece} << 50 | std::uint64_t{i.pieces} << 57 : 0));
    const auto pair = [](std::int32_t a, std::int32_t b) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 |
               static_cast<std::uint32_t>(b);
    };
    hash.add(pair(i.stage, i.micro_batch));
    hash.add(pair(i.operators.begin, i.operators.end));
    hash.add(pair(i.bucket.value_or(absent), i.peer.value_or(absent)));
    hash.add(pair(i.tensors.value_or(absent), static_cast<std::int32_t>(i.after_count)));
    hash.add(pair(static_cast<std::int32_t>(i.allocate_count), static_cast<std::int32_t>(i.free_count)));
    hash.add(i.bytes);
    for (const std::uint64_t index : list.after(i)) hash.add(index);
    for (const std::uint64_t index : list.allocates(i)) hash.add(index);
    for (const std::uint64_t index : list.frees(i)) hash.add(index);
}

}  // namespace

std::string hash_of(const Program& program) {
    Hash hash;
    const Plan& plan = program.plan;
    hash.add(program.directions);
    hash.add(program.passes_per_micro_batch());
    hash.add(program.micro_batches_per_update);
    for (const char letter : plan.layout.order) hash.add(int{letter});
    for (const int number : {plan.layout.data,
                             plan.layout.tensor,
                             plan.layout.pipeline,
                             plan.layout.context,
                             plan.layout.expert,
                             int{plan.layout.spreads_experts_over_tensor()},
                             core::position_of(plan.offload),
                             plan.activation_loading_horizon,
                             plan.virtual_stages,
                             plan.micro_batch,
                             plan.micro_batches,
                             program.micro_batches,
                             core::position_of(plan.sharding),
                             plan.effective_shard_degree(),
                             int{plan.sequence_parallel},
                             plan.tensor_overlap,
                             core::position_of(plan.context_communication),
                             core::position_of(plan.recompute),
                             core::position_of(plan.precision.compute),
                             core::position_of(plan.precision.parameters),
                             core::position_of(plan.precision.gradients),
                             int{plan.precision.has_master_parameters},
                             core::position_of(plan.attention),
                             int{plan.fused_cross_entropy},
                             core::position_of(plan.optimizer.kind)})
        hash.add(number);
    for (const double number :
         {plan.optimizer.learning_rate, plan.optimizer.momentum, plan.optimizer.beta1, plan.optimizer.beta2,
          plan.optimizer.epsilon, plan.optimizer.weight_decay, plan.optimizer.gradient_clipping})
        hash.add(std::bit_cast<std::uint64_t>(number));
    for (const std::string& text : {plan.collective, program.model_hash})
        for (const char letter : text) hash.add(int{letter});
    for (const StageInfo& stage : program.stages)
        for (const int number : {stage.rank, stage.operators.begin, stage.operators.end,
                                 stage.receives.value_or(absent), stage.sends.value_or(absent)})
            hash.add(number);
    for (const RankProgram& list : program.classes) {
        hash.add(list.pipeline);
        hash.add(std::uint64_t{list.instructions.size()});
        for (const Instruction& i : list.instructions) add_instruction(hash, list, i);
        for (const Buffer& buffer : list.buffers) {
            hash.add(core::position_of(buffer.kind) * 2 + (buffer.is_persistent ? 1 : 0));
            hash.add(buffer.bytes);
        }
        for (const ParameterBucket& bucket : list.buckets) {
            for (const model::ParameterId parameter : bucket.parameters) hash.add(parameter.index);
            for (const std::int64_t offset : bucket.offsets) hash.add(offset);
            hash.add(bucket.elements);
            hash.add(bucket.padded_elements);
            hash.add(bucket.pieces * 2 + (bucket.is_expert ? 1 : 0));
            hash.add(bucket.stage * 2 + (bucket.is_partial_over_tensor ? 1 : 0));
            for (const std::int32_t rank : bucket.tied_ranks) hash.add(rank);
        }
    }
    for (const std::int32_t class_index : program.class_of_rank) hash.add(class_index);
    for (const std::vector<model::TensorId>& tensors : program.tensor_lists) {
        hash.add(std::uint64_t{tensors.size()});
        for (const model::TensorId tensor : tensors) hash.add(tensor.index);
    }
    return fmt::format("{:016x}", hash.value());
}

}  // namespace schedule
