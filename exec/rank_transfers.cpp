// What a rank exchanges with others: boundary tensors, partial sums of tensor parallelism, buckets.
#include <algorithm>
#include <cstring>

#include "exec/collective.h"
#include "exec/cpu/kernels.h"
#include "exec/rank_executor.h"
#include "schedule/collective/rounds.h"

namespace exec {

using model::OperatorKind;
using model::TensorId;
using schedule::CollectiveKind;
using schedule::ComputePhase;
using schedule::GroupKind;
using schedule::Instruction;
using schedule::MemoryKind;
using schedule::PayloadKind;

namespace {

// Fields that tell concurrent messages between two ranks apart; a collective's rounds count up in the lowest 12 bits.
Tag tag_of(bool is_collective, std::uint64_t group, PayloadKind payload, std::uint64_t what, std::uint64_t micro_batch) {
    return static_cast<Tag>(is_collective) << 63 | group << 59 | static_cast<Tag>(payload) << 55 | (what & 0xFFFFFF) << 28 | (micro_batch & 0xFFFF) << 12;
}

}  // namespace

void RankExecutor::send(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage);
    const bool is_forward = instruction.payload == PayloadKind::activation;
    const std::int32_t boundary = instruction.stage + (is_forward ? 1 : 0);
    if (is_forward) take_over_activations(instruction.stage, instruction.micro_batch);
    else take_over_gradients(instruction.stage, instruction.micro_batch);
    Tag tag = tag_of(false, 0, instruction.payload, static_cast<std::uint64_t>(boundary), static_cast<std::uint64_t>(instruction.micro_batch));
    for (const TensorId id : program_.tensor_lists[static_cast<std::size_t>(instruction.tensors)]) {
        const auto t = static_cast<std::size_t>(id.index);
        const auto storage = static_cast<std::size_t>(is_forward ? plan.storage[t] : plan.gradient_storage[t]);
        const BufferPointer buffer = is_forward ? state.tensors[storage] : gradient(state, plan, id);
        core::require(buffer != nullptr, "a tensor is there when it is sent");
        // The message keeps the array until the receiver has read it.
        communicator_.start_send(peer_rank(instruction.peer), tag++, buffer->span(), buffer);
        if (!is_forward) state.gradients[storage].reset();
        else if (!plan.is_saved[storage]) state.tensors[storage].reset();
    }
}

void RankExecutor::receive(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage);
    const bool is_forward = instruction.payload == PayloadKind::activation;
    const std::int32_t boundary = instruction.stage + (is_forward ? 0 : 1);
    Tag tag = tag_of(false, 0, instruction.payload, static_cast<std::uint64_t>(boundary), static_cast<std::uint64_t>(instruction.micro_batch));
    for (const TensorId id : program_.tensor_lists[static_cast<std::size_t>(instruction.tensors)]) {
        BufferPointer buffer = make_buffer(account_, MemoryKind::activations, bytes(id));
        communicator_.receive(peer_rank(instruction.peer), tag++, buffer->span(), Arrival::overwrites);
        const auto t = static_cast<std::size_t>(id.index);
        if (is_forward) state.tensors[static_cast<std::size_t>(plan.storage[t])] = std::move(buffer);
        else state.gradients[static_cast<std::size_t>(plan.gradient_storage[t])] = std::move(buffer);
    }
}

void RankExecutor::reduce(const Instruction& instruction, std::span<float> data, Tag tag) {
    const std::vector<int> members = schedule::members_of(program_, communicator_.rank(), instruction);
    if (members.size() < 2) return;
    const auto size = static_cast<int>(members.size());
    const int per_node = options_.ranks_per_node > 0 ? options_.ranks_per_node : program_.plan.layout.ranks();
    const schedule::CollectiveAlgorithm& algorithm =
        schedule::select_collective(program_.plan.collective, instruction.collective, size, per_node, instruction.bytes);
    const schedule::Rounds rounds = algorithm.rounds(instruction.collective, size, per_node);
    if (instruction.collective == CollectiveKind::reduce_scatter || instruction.collective == CollectiveKind::all_gather)
        for (int r = 0; r < size; ++r)
            core::require(rounds.owned_piece[static_cast<std::size_t>(r)] == r, "member i of a group owns piece i of what is scattered or gathered");
    exec::perform(communicator_, rounds, members, data, tag);
}

void RankExecutor::collective(const Instruction& instruction) {
    switch (instruction.payload) {
        case PayloadKind::activation:
        case PayloadKind::activation_gradient: activation_collective(instruction); break;
        case PayloadKind::parameter:
        case PayloadKind::parameter_gradient: bucket_collective(instruction); break;
        case PayloadKind::loss: {
            auto value = static_cast<float>(step_loss_);
            reduce(instruction, {&value, 1}, tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload, 0, 0));
            step_loss_ = static_cast<double>(value);
            break;
        }
        case PayloadKind::none: core::require(false, "a collective carries something"); break;
    }
}

// A collective that performs one operator: enter or exit of a region, or the exchange of the loss's statistics.
void RankExecutor::activation_collective(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[static_cast<std::size_t>(index)];
    const Tag tag = tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload, static_cast<std::uint64_t>(index),
                           static_cast<std::uint64_t>(instruction.micro_batch));
    const auto own_piece = [&](std::span<float> whole) {
        const PieceRange range = piece_range(whole.size(), context_.tensor_parallel, place_.tensor, 1);
        return whole.subspan(range.begin, range.end - range.begin);
    };
    if (instruction.payload == PayloadKind::activation) {
        take_over_activations(instruction.stage, instruction.micro_batch);
        const auto input = static_cast<std::size_t>(plan.storage[static_cast<std::size_t>(op.inputs[0].index)]);
        const auto output = static_cast<std::size_t>(plan.storage[static_cast<std::size_t>(op.output.index)]);
        if (op.kind == OperatorKind::loss_statistics) {
            const BufferPointer part = state.tensors[output];
            const BufferPointer all = make_buffer(account_, MemoryKind::activations, part->bytes() * static_cast<std::size_t>(context_.tensor_parallel));
            std::memcpy(own_piece(all->span()).data(), part->data(), part->bytes());
            reduce(instruction, all->span(), tag);
            state.tensors[output] = all;
            return;
        }
        if (instruction.collective == CollectiveKind::all_reduce) {
            reduce(instruction, state.tensors[input]->span(), tag);  // in place: the output is a view
        } else if (instruction.collective == CollectiveKind::all_gather) {
            Buffer& whole = *tensor(state, plan, op.output);
            std::memcpy(own_piece(whole.span()).data(), state.tensors[input]->data(), state.tensors[input]->bytes());
            reduce(instruction, whole.span(), tag);
        } else {
            const BufferPointer whole = state.tensors[input];
            reduce(instruction, whole->span(), tag);
            Buffer& share = *tensor(state, plan, op.output);
            std::memcpy(share.data(), own_piece(whole->span()).data(), share.bytes());
        }
        const bool is_gathered_for_weights = instruction.phase == ComputePhase::recompute && !plan.plan_of(index).is_recomputed;
        if (!is_gathered_for_weights) finish_forward(state, plan, index, instruction.phase == ComputePhase::recompute);
        return;
    }
    take_over_gradients(instruction.stage, instruction.micro_batch);
    const auto output = static_cast<std::size_t>(plan.gradient_storage[static_cast<std::size_t>(op.output.index)]);
    const auto input = static_cast<std::size_t>(plan.gradient_storage[static_cast<std::size_t>(op.inputs[0].index)]);
    const BufferPointer dy = state.gradients[output];
    core::require(dy != nullptr, "a gradient is there before its collective");
    if (instruction.collective == CollectiveKind::all_gather) {
        const BufferPointer whole = gradient(state, plan, op.inputs[0]);
        std::memcpy(own_piece(whole->span()).data(), dy->data(), dy->bytes());
        reduce(instruction, whole->span(), tag);
    } else {
        reduce(instruction, dy->span(), tag);
        if (input != output) {
            const std::span<float> sum = instruction.collective == CollectiveKind::reduce_scatter ? own_piece(dy->span()) : dy->span();
            cpu::kernels().accumulate(static_cast<std::int64_t>(sum.size()), sum.data(), gradient(state, plan, op.inputs[0])->data());
        }
    }
    finish_backward(state, plan, index, instruction.phase);
}

void RankExecutor::bucket_collective(const Instruction& instruction) {
    BucketState& bucket = buckets_[static_cast<std::size_t>(instruction.bucket)];
    const Tag tag = tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload,
                           static_cast<std::uint64_t>(bucket.bucket().parameters[0].index), static_cast<std::uint64_t>(instruction.on_shard));
    if (instruction.payload == PayloadKind::parameter) {
        bucket.begin_gather();
        reduce(instruction, bucket.whole_parameters(), tag);
        return;
    }
    reduce(instruction, instruction.on_shard ? bucket.piece_gradient() : bucket.whole_gradient(), tag);
    if (instruction.collective == CollectiveKind::reduce_scatter) bucket.finish_reduce_scatter();
}

}  // namespace exec
