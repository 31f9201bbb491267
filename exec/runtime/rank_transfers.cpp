// What a rank exchanges with others: boundary tensors, partial sums of tensor parallelism, buckets.
#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/runtime/rank_executor.h"
#include "exec/transport/collective.h"
#include "model/operators/rank_share.h"
#include "schedule/program/pieces.h"

namespace exec {

using model::OperatorKind;
using model::TensorId;
using schedule::CollectiveKind;
using schedule::ComputePhase;
using schedule::GroupKind;
using schedule::Instruction;
using schedule::MemoryKind;
using schedule::PayloadKind;
using schedule::PieceRows;

namespace {

// Fields that tell concurrent messages between two ranks apart; a collective's rounds count up in the lowest
// 12 bits.
// `what`: boundary, operator or parameter; neither it nor `micro_batch` is negative.
Tag tag_of(Tag is_collective, Tag group, PayloadKind payload, std::int64_t what, std::int64_t micro_batch) {
    const Tag kind = core::position_of(payload);
    return is_collective << 63 | group << 58 | kind << 54 | (what & 0xFFFFFF) << 28 |
           (micro_batch & 0xFFFF) << 12;
}

Tag message_tag(PayloadKind payload, std::int32_t boundary, std::int32_t micro_batch) {
    return tag_of(0, 0, payload, boundary, micro_batch);
}

Tag collective_tag(const Instruction& instruction, std::int32_t what = 0, std::int32_t micro_batch = 0) {
    return tag_of(1, core::position_of(instruction.group), instruction.payload, what, micro_batch);
}

}  // namespace

void RankExecutor::send(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const bool is_forward = instruction.payload == PayloadKind::activation;
    const std::int32_t boundary = instruction.stage + (is_forward ? 1 : 0);
    if (is_forward) take_over_activations(instruction.stage, instruction.micro_batch);
    else take_over_gradients(instruction.stage, instruction.micro_batch);
    Tag tag = message_tag(instruction.payload, boundary, instruction.micro_batch);
    for (const TensorId id : program_.tensor_lists[*instruction.tensors]) {
        const TensorId storage = is_forward ? plan.storage[id] : plan.gradient_storage[id];
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
    Tag tag = message_tag(instruction.payload, boundary, instruction.micro_batch);
    for (const TensorId id : program_.tensor_lists[*instruction.tensors]) {
        BufferPointer buffer = make_buffer(account_, MemoryKind::activations, bytes(id));
        backend_.receive(peer_rank(*instruction.peer), tag++, *buffer);
        if (is_forward) state.tensors[plan.storage[id]] = std::move(buffer);
        else state.gradients[plan.gradient_storage[id]] = std::move(buffer);
    }
}

void RankExecutor::reduce(const Instruction& instruction, TensorView data, Tag tag) {
    const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
    if (members.size() > 1) backend_.collective(instruction, members, data, tag);
}

void RankExecutor::collective(const Instruction& instruction) {
    switch (instruction.payload) {
        case PayloadKind::activation:
        case PayloadKind::activation_gradient: activation_collective(instruction); break;
        case PayloadKind::parameter:
        case PayloadKind::parameter_gradient: bucket_collective(instruction); break;
        case PayloadKind::loss: {
            const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
            if (members.size() > 1) backend_.reduce_loss(instruction, members, collective_tag(instruction));
            break;
        }
        case PayloadKind::gradient_norm: {
            const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
            if (members.size() > 1)
                backend_.reduce_squares(instruction, members, collective_tag(instruction));
            break;
        }
        case PayloadKind::update_norm: {
            const BucketState& bucket = buckets_[*instruction.bucket];
            reduce(instruction, bucket.update_sums(),
                   collective_tag(instruction, bucket.bucket().parameters[0].index));
            break;
        }
        case PayloadKind::none: core::require(false, "a collective carries something"); break;
    }
}

// A collective that performs one operator: enter or exit of a region, or the exchange of the loss's
// statistics.
void RankExecutor::activation_collective(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const Tag tag = collective_tag(instruction, instruction.operators.begin, instruction.micro_batch);
    if (model::exchanges_heads(graph_.operators[instruction.operators.begin], context_))
        return exchange_heads(instruction, state, tag);
    if (instruction.collective == CollectiveKind::rotate) return rotate_keys(instruction, state, tag);
    if (instruction.collective == CollectiveKind::all_to_all)
        return exchange_routed_tokens(instruction, state, tag);
    if (instruction.group == GroupKind::tokens) return sum_choices(instruction, state, tag);
    if (model::gathers_keys(graph_.operators[instruction.operators.begin], context_))
        return instruction.collective == CollectiveKind::all_gather
                   ? gather_keys(instruction, state, tag)
                   : scatter_key_gradients(instruction, state, tag);
    if (instruction.pieces > 1)
        return instruction.payload == PayloadKind::activation
                   ? exchange_forward_piece(instruction, state, tag)
                   : exchange_backward_piece(instruction, state, tag);
    if (instruction.payload == PayloadKind::activation) tensor_collective(instruction, state, tag);
    else tensor_gradient_collective(instruction, state, tag);
}

// This rank's piece of an array that its tensor-parallel group shares.
TensorView RankExecutor::tensor_piece(const TensorView& whole) const {
    const PieceRange range = piece_range(whole.elements(), context_.tensor_parallel, coordinates_.tensor, 1);
    return whole.part(range.begin, range.end - range.begin);
}

void RankExecutor::tensor_collective(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const core::DataType type = type_of(op.output);
    take_over_activations(instruction.stage, instruction.micro_batch);
    const TensorId input = plan.storage[op.inputs[0]];
    const TensorId output = plan.storage[op.output];
    if (op.kind == OperatorKind::loss_statistics) {
        const BufferPointer part = state.tensors[output];
        const BufferPointer all =
            make_buffer(account_, MemoryKind::activations, part->bytes() * context_.tensor_parallel);
        const TensorView whole = all->view(type);
        backend_.copy(tensor_piece(whole).data(), part->data(), part->bytes());
        reduce(instruction, whole, tag);
        state.tensors[output] = all;
        return;
    }
    if (instruction.collective == CollectiveKind::all_reduce) {
        reduce(instruction, state.tensors[input]->view(type), tag);  // in place: the output is a view
    } else if (instruction.collective == CollectiveKind::all_gather) {
        const TensorView whole = tensor(state, plan, op.output)->view(type);
        backend_.copy(tensor_piece(whole).data(), state.tensors[input]->data(),
                      state.tensors[input]->bytes());
        reduce(instruction, whole, tag);
    } else {
        core::require(instruction.collective == CollectiveKind::reduce_scatter,
                      "activations are reduced, gathered or scattered");
        const BufferPointer kept = state.tensors[input];
        const TensorView whole = kept->view(type);
        reduce(instruction, whole, tag);
        Buffer& share = *tensor(state, plan, op.output);
        backend_.copy(share.data(), tensor_piece(whole).data(), share.bytes());
    }
    const bool is_gathered_for_weights =
        instruction.phase == ComputePhase::recompute && !plan.plan_of(index).is_recomputed;
    if (!is_gathered_for_weights)
        finish_forward(state, plan, index, instruction.phase == ComputePhase::recompute);
}

void RankExecutor::tensor_gradient_collective(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const core::DataType type = type_of(op.output);
    take_over_gradients(instruction.stage, instruction.micro_batch);
    const TensorId output = plan.gradient_storage[op.output];
    const TensorId input = plan.gradient_storage[op.inputs[0]];
    const BufferPointer dy = state.gradients[output];
    core::require(dy != nullptr, "a gradient is there before its collective");
    if (instruction.collective == CollectiveKind::all_gather) {
        const TensorView whole = gradient(state, plan, op.inputs[0])->view(type);
        backend_.copy(tensor_piece(whole).data(), dy->data(), dy->bytes());
        reduce(instruction, whole, tag);
    } else {
        const TensorView whole = dy->view(type);
        reduce(instruction, whole, tag);
        if (input != output) {
            const bool is_scattered = instruction.collective == CollectiveKind::reduce_scatter;
            backend_.accumulate(is_scattered ? tensor_piece(whole) : whole,
                                gradient(state, plan, op.inputs[0])->view(type));
        }
    }
    finish_backward(state, plan, index, instruction.phase);
}

void RankExecutor::bucket_collective(const Instruction& instruction) {
    BucketState& bucket = buckets_[*instruction.bucket];
    const Tag tag = collective_tag(instruction, bucket.bucket().parameters[0].index, instruction.on_shard);
    if (instruction.payload == PayloadKind::parameter) {
        bucket.begin_gather();
        reduce(instruction, bucket.whole_parameters(), tag);
        bucket.finish_gather();
        return;
    }
    reduce(instruction, instruction.on_shard ? bucket.piece_gradient() : bucket.whole_gradient(), tag);
    if (instruction.collective == CollectiveKind::reduce_scatter) bucket.finish_reduce_scatter();
}

// Products in pieces of their rows, and the exchanges of these pieces (schedule/program/pieces.h).

PieceRows RankExecutor::rows_of(const Instruction& instruction, TensorId exchanged) const {
    const int shares = context_.sequence_parallel ? context_.tensor_parallel : 1;
    return schedule::piece_rows(shapes_[exchanged].rows, shares, instruction.piece, instruction.pieces);
}

void RankExecutor::forward_piece(MicroBatch& state, const Instruction& instruction) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    tensor(state, plan, op.output);
    Operands x = operands(state, instruction.stage, index);
    for (const model::ParameterId id : op.parameters) x.parameters.push_back(parameter(state, id));
    backend_.begin_operators(state.position.segment);
    backend_.operators().forward_rows(model::OperatorId(index), x, rows_of(instruction, op.output),
                                      state.position);
    backend_.end_operator(index, model::Phase::forward);
    if (schedule::is_last_piece(instruction))
        finish_forward(state, plan, index, instruction.phase == ComputePhase::recompute);
}

void RankExecutor::backward_piece(MicroBatch& state, const Instruction& instruction) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const BufferPointer& dy = state.gradients[plan.gradient_storage[op.output]];
    core::require(dy != nullptr, "a gradient is there before the product in pieces that reads it");
    const TensorView gradient_of_output = view_of(state, op, op.output, dy);
    backend_.begin_operators(state.position.segment);
    if (schedule::is_of_weights(instruction)) {
        const Operands x = operands(state, instruction.stage, index);
        std::vector<TensorView> dparameters;
        for (const model::ParameterId id : op.parameters) dparameters.push_back(parameter_gradient(id));
        backend_.operators().backward_weight(model::OperatorId(index), x, gradient_of_output, dparameters);
        backend_.end_operator(index, model::Phase::backward_weight);
        finish_backward(state, plan, index, instruction.phase);
        return;
    }
    Operands x;
    x.place = &state.position;
    x.inputs.resize(op.inputs.size());  // no input gradient of a linear layer reads its input
    for (const model::ParameterId id : op.parameters) x.parameters.push_back(parameter(state, id));
    const TensorId storage = plan.gradient_storage[op.inputs[0]];
    BufferPointer& gradient = state.gradients[storage];
    core::require((gradient == nullptr) == (instruction.piece == 0),
                  "no other gradient is added to one that is computed in pieces");
    if (!gradient) gradient = make_buffer(account_, MemoryKind::workspace, bytes(storage));
    const TensorView dx = view_of(state, op, op.inputs[0], gradient);
    const PieceRows rows = rows_of(instruction, op.inputs[0]);
    const TensorView own = dx.rows(rows.to, rows.size());
    backend_.fill_zero(own.data(), own.bytes());
    backend_.operators().backward_input_rows(model::OperatorId(index), x, gradient_of_output, dx, rows,
                                             state.position);
    backend_.end_operator(index, model::Phase::backward_input);
    if (instruction.phase != ComputePhase::backward_input || !schedule::is_last_piece(instruction)) return;
    state.kept_gradients[index - plan.operators.begin] = dy;
    finish_backward(state, plan, index, instruction.phase);
}

// Rows of a piece lie together. A rank's own share of them is brought to its place with the last piece, of
// all pieces at once: until then nothing reads it.
void RankExecutor::exchange_piece(const Instruction& instruction, const TensorView& whole, TensorId exchanged,
                                  Tag tag) {
    const PieceRows rows = rows_of(instruction, exchanged);
    // A piece's rounds must not meet those of the next on their way: half of a collective's tags each.
    const Tag half = instruction.piece % 2 == 0 ? 0 : 1 << 11;
    reduce(instruction, whole.rows(rows.to, rows.size()), tag + half);
}

void RankExecutor::for_each_own_piece(
    const Instruction& instruction, const TensorView& whole, const TensorView& share, TensorId exchanged,
    const std::function<void(const TensorView& from, const TensorView& to)>& visit) const {
    Instruction one = instruction;
    for (int piece = 0; piece < instruction.pieces; ++piece) {
        one.piece = static_cast<std::uint8_t>(piece);
        const PieceRows rows = rows_of(one, exchanged);
        visit(whole.rows(rows.to + coordinates_.tensor * rows.rows, rows.rows),
              share.rows(rows.from, rows.rows));
    }
}

void RankExecutor::exchange_forward_piece(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const BufferPointer kept = state.tensors[plan.storage[op.inputs[0]]];
    const TensorView whole = view_of(state, op, op.inputs[0], kept);
    exchange_piece(instruction, whole, op.inputs[0], tag);
    if (!schedule::is_last_piece(instruction)) return;
    if (instruction.collective == CollectiveKind::reduce_scatter) {
        const TensorView share = view_of(state, op, op.output, tensor(state, plan, op.output));
        for_each_own_piece(instruction, whole, share, op.inputs[0],
                           [&](const TensorView& from, const TensorView& to) {
                               backend_.copy(to.data(), from.data(), from.bytes());
                           });
    }
    finish_forward(state, plan, index, instruction.phase == ComputePhase::recompute);
}

void RankExecutor::exchange_backward_piece(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const TensorId output = plan.gradient_storage[op.output], input = plan.gradient_storage[op.inputs[0]];
    const BufferPointer dy = state.gradients[output];
    core::require(dy != nullptr, "a gradient is there before its collective");
    const TensorView whole = view_of(state, op, op.output, dy);
    exchange_piece(instruction, whole, op.output, tag);
    if (!schedule::is_last_piece(instruction)) return;
    if (input != output) {
        const TensorView sum = view_of(state, op, op.inputs[0], gradient(state, plan, op.inputs[0]));
        if (instruction.collective == CollectiveKind::reduce_scatter)
            for_each_own_piece(
                instruction, whole, sum, op.output,
                [&](const TensorView& from, const TensorView& to) { backend_.accumulate(from, to); });
        else backend_.accumulate(whole, sum);
    }
    finish_backward(state, plan, index, instruction.phase);
}

}  // namespace exec
