// What a rank exchanges with others: boundary tensors, partial sums of tensor parallelism, buckets.
#include "core/errors.h"
#include "exec/runtime/rank_executor.h"
#include "exec/transport/collective.h"

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

// Fields that tell concurrent messages between two ranks apart; a collective's rounds count up in the lowest
// 12 bits.
Tag tag_of(bool is_collective, std::uint64_t group, PayloadKind payload, std::uint64_t what,
           std::uint64_t micro_batch) {
    return static_cast<Tag>(is_collective) << 63 | group << 58 | static_cast<Tag>(payload) << 54 |
           (what & 0xFFFFFF) << 28 | (micro_batch & 0xFFFF) << 12;
}

}  // namespace

void RankExecutor::send(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const bool is_forward = instruction.payload == PayloadKind::activation;
    const std::int32_t boundary = instruction.stage + (is_forward ? 1 : 0);
    if (is_forward) take_over_activations(instruction.stage, instruction.micro_batch);
    else take_over_gradients(instruction.stage, instruction.micro_batch);
    Tag tag = tag_of(false, 0, instruction.payload, static_cast<std::uint64_t>(boundary),
                     static_cast<std::uint64_t>(instruction.micro_batch));
    for (const TensorId id : program_.tensor_lists[static_cast<std::size_t>(*instruction.tensors)]) {
        const auto t = static_cast<std::size_t>(id.index);
        const auto storage =
            static_cast<std::size_t>(is_forward ? plan.storage[t] : plan.gradient_storage[t]);
        const BufferPointer buffer = is_forward ? state.tensors[storage] : gradient(state, plan, id);
        core::require(buffer != nullptr, "a tensor is there when it is sent");
        backend_.send(peer_rank(*instruction.peer), tag++, buffer);
        if (!is_forward) state.gradients[storage].reset();
        else if (!plan.is_saved[storage]) state.tensors[storage].reset();
    }
}

void RankExecutor::receive(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const bool is_forward = instruction.payload == PayloadKind::activation;
    const std::int32_t boundary = instruction.stage + (is_forward ? 0 : 1);
    Tag tag = tag_of(false, 0, instruction.payload, static_cast<std::uint64_t>(boundary),
                     static_cast<std::uint64_t>(instruction.micro_batch));
    for (const TensorId id : program_.tensor_lists[static_cast<std::size_t>(*instruction.tensors)]) {
        BufferPointer buffer = make_buffer(account_, MemoryKind::activations, bytes(id));
        backend_.receive(peer_rank(*instruction.peer), tag++, *buffer);
        const auto t = static_cast<std::size_t>(id.index);
        if (is_forward) state.tensors[static_cast<std::size_t>(plan.storage[t])] = std::move(buffer);
        else state.gradients[static_cast<std::size_t>(plan.gradient_storage[t])] = std::move(buffer);
    }
}

void RankExecutor::reduce(const Instruction& instruction, core::DataType type, float* data, std::size_t count,
                          Tag tag) {
    const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
    if (members.size() > 1) backend_.collective(instruction, members, type, data, count, tag);
}

void RankExecutor::collective(const Instruction& instruction) {
    switch (instruction.payload) {
        case PayloadKind::activation:
        case PayloadKind::activation_gradient: activation_collective(instruction); break;
        case PayloadKind::parameter:
        case PayloadKind::parameter_gradient: bucket_collective(instruction); break;
        case PayloadKind::loss: {
            const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
            if (members.size() > 1)
                backend_.reduce_loss(
                    instruction, members,
                    tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload, 0, 0));
            break;
        }
        case PayloadKind::gradient_norm: {
            const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
            if (members.size() > 1)
                backend_.reduce_squares(
                    instruction, members,
                    tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload, 0, 0));
            break;
        }
        case PayloadKind::update_norm: {
            const BucketState& bucket = buckets_[static_cast<std::size_t>(*instruction.bucket)];
            reduce(instruction, bucket.update_sums(),
                   tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload,
                          static_cast<std::uint64_t>(bucket.bucket().parameters[0].index), 0));
            break;
        }
        case PayloadKind::none: core::require(false, "a collective carries something"); break;
    }
}

// A collective that performs one operator: enter or exit of a region, or the exchange of the loss's
// statistics.
void RankExecutor::activation_collective(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const Tag tag = tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload,
                           static_cast<std::uint64_t>(instruction.operators.begin),
                           static_cast<std::uint64_t>(instruction.micro_batch));
    if (instruction.collective == CollectiveKind::all_to_all)
        return exchange_routed_tokens(instruction, state, tag);
    if (instruction.group == GroupKind::context && instruction.collective == CollectiveKind::all_reduce)
        return sum_choices(instruction, state, tag);
    if (instruction.group == GroupKind::context)
        return instruction.collective == CollectiveKind::all_gather
                   ? gather_keys(instruction, state, tag)
                   : scatter_key_gradients(instruction, state, tag);
    if (instruction.payload == PayloadKind::activation) tensor_collective(instruction, state, tag);
    else tensor_gradient_collective(instruction, state, tag);
}

// This rank's piece of an array that its tensor-parallel group shares, in bytes.
PieceRange RankExecutor::tensor_piece(const Buffer& whole) const {
    return piece_range(whole.bytes(), context_.tensor_parallel, coordinates_.tensor, 1);
}

char* RankExecutor::address_of_piece(Buffer& whole) const {
    return reinterpret_cast<char*>(whole.data()) + tensor_piece(whole).begin;
}

void RankExecutor::reduce_tensor(const Instruction& instruction, Buffer& buffer, core::DataType type,
                                 Tag tag) {
    reduce(instruction, type, buffer.data(),
           buffer.bytes() / static_cast<std::size_t>(core::size_of(type).value), tag);
}

void RankExecutor::tensor_collective(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[static_cast<std::size_t>(index)];
    const core::DataType type = type_of(op.output);
    take_over_activations(instruction.stage, instruction.micro_batch);
    const auto input = static_cast<std::size_t>(plan.storage[static_cast<std::size_t>(op.inputs[0].index)]);
    const auto output = static_cast<std::size_t>(plan.storage[static_cast<std::size_t>(op.output.index)]);
    if (op.kind == OperatorKind::loss_statistics) {
        const BufferPointer part = state.tensors[output];
        const BufferPointer all =
            make_buffer(account_, MemoryKind::activations,
                        part->bytes() * static_cast<std::size_t>(context_.tensor_parallel));
        backend_.copy(address_of_piece(*all), part->data(), part->bytes());
        reduce_tensor(instruction, *all, type, tag);
        state.tensors[output] = all;
        return;
    }
    if (instruction.collective == CollectiveKind::all_reduce) {
        reduce_tensor(instruction, *state.tensors[input], type, tag);  // in place: the output is a view
    } else if (instruction.collective == CollectiveKind::all_gather) {
        Buffer& whole = *tensor(state, plan, op.output);
        backend_.copy(address_of_piece(whole), state.tensors[input]->data(), state.tensors[input]->bytes());
        reduce_tensor(instruction, whole, type, tag);
    } else {
        core::require(instruction.collective == CollectiveKind::reduce_scatter,
                      "activations are reduced, gathered or scattered");
        const BufferPointer whole = state.tensors[input];
        reduce_tensor(instruction, *whole, type, tag);
        Buffer& share = *tensor(state, plan, op.output);
        backend_.copy(share.data(), address_of_piece(*whole), share.bytes());
    }
    const bool is_gathered_for_weights =
        instruction.phase == ComputePhase::recompute && !plan.plan_of(index).is_recomputed;
    if (!is_gathered_for_weights)
        finish_forward(state, plan, index, instruction.phase == ComputePhase::recompute);
}

void RankExecutor::tensor_gradient_collective(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[static_cast<std::size_t>(index)];
    const core::DataType type = type_of(op.output);
    take_over_gradients(instruction.stage, instruction.micro_batch);
    const auto output =
        static_cast<std::size_t>(plan.gradient_storage[static_cast<std::size_t>(op.output.index)]);
    const auto input =
        static_cast<std::size_t>(plan.gradient_storage[static_cast<std::size_t>(op.inputs[0].index)]);
    const BufferPointer dy = state.gradients[output];
    core::require(dy != nullptr, "a gradient is there before its collective");
    if (instruction.collective == CollectiveKind::all_gather) {
        const BufferPointer whole = gradient(state, plan, op.inputs[0]);
        backend_.copy(address_of_piece(*whole), dy->data(), dy->bytes());
        reduce_tensor(instruction, *whole, type, tag);
    } else {
        reduce_tensor(instruction, *dy, type, tag);
        if (input != output) {
            const bool is_scattered = instruction.collective == CollectiveKind::reduce_scatter;
            const PieceRange range = is_scattered ? tensor_piece(*dy) : PieceRange{0, dy->bytes()};
            backend_.accumulate(
                type,
                static_cast<std::int64_t>((range.end - range.begin) /
                                          static_cast<std::size_t>(core::size_of(type).value)),
                reinterpret_cast<const char*>(dy->data()) + range.begin,
                gradient(state, plan, op.inputs[0])->data());
        }
    }
    finish_backward(state, plan, index, instruction.phase);
}

void RankExecutor::bucket_collective(const Instruction& instruction) {
    BucketState& bucket = buckets_[static_cast<std::size_t>(*instruction.bucket)];
    const Tag tag = tag_of(true, static_cast<std::uint64_t>(instruction.group), instruction.payload,
                           static_cast<std::uint64_t>(bucket.bucket().parameters[0].index),
                           static_cast<std::uint64_t>(instruction.on_shard));
    if (instruction.payload == PayloadKind::parameter) {
        bucket.begin_gather();
        reduce(instruction, bucket.whole_parameters(), tag);
        return;
    }
    reduce(instruction, instruction.on_shard ? bucket.piece_gradient() : bucket.whole_gradient(), tag);
    if (instruction.collective == CollectiveKind::reduce_scatter) bucket.finish_reduce_scatter();
}

}  // namespace exec
