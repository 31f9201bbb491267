// Exchanges in parts: routed tokens for experts of other ranks, keys of a context-parallel group,
// activations that wait outside its memory.
#include "core/errors.h"
#include "exec/runtime/rank_executor.h"

#include <algorithm>
#include <numeric>

#include "model/operators/rank_share.h"

namespace exec {

using model::OperatorKind;
using schedule::ComputePhase;
using schedule::Instruction;
using schedule::MemoryKind;
using schedule::PayloadKind;

std::int32_t RankExecutor::dispatch_of(const model::Operator& op) const {
    return op.kind == OperatorKind::experts ? graph_.tensor(op.inputs[0]).producer.index
                                            : graph_.tensor(op.output).producer.index;
}

// Routed tokens are sent in the order of experts, and so of the ranks that have them. They are received in
// the order of the source ranks, each in the order of this rank's experts. Results, and gradients of routed
// tokens, go the same ways back.
void RankExecutor::exchange_routed_tokens(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::Operator& op = graph_.operators[index];
    const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
    const bool is_gradient = instruction.payload == PayloadKind::activation_gradient,
               is_dispatch = op.kind == OperatorKind::dispatch;
    ExpertExchange& exchange = state.exchanges[dispatch_of(op)];
    const std::size_t hidden = graph_.tensor(op.output).shape.back();
    if (is_dispatch && !is_gradient) {
        const Backend::RoutedTokenCounts counts = backend_.exchange_counts(
            model::OperatorId(index), operands(state, instruction.stage, index), members, tag);
        const std::size_t own = counts.own.size() / members.size();
        exchange.rows = counts.received;
        exchange.sent.assign(members.size(), 0);
        exchange.received.assign(members.size(), 0);
        for (std::size_t e = 0; e < counts.own.size(); ++e) {
            exchange.sent[e / own] += counts.own[e] * hidden;
            exchange.received[e / own] += counts.received[e] * hidden;
        }
        const std::int64_t came =
            std::accumulate(counts.received.begin(), counts.received.end(), std::int64_t{0});
        exchange.room = backend_.room_for_routed_tokens(model::OperatorId(index), came) * hidden;
    }
    const model::TensorId storage = (is_gradient ? plan.gradient_storage : plan.storage)[op.output];
    BufferPointer& from = (is_gradient ? state.gradients : state.tensors)[storage];
    core::require(from != nullptr, "routed tokens are there before they are exchanged");
    const bool is_outward = is_dispatch != is_gradient;
    const std::size_t bytes_to = is_outward ? activation_bytes(exchange.room) : bytes(op.output);
    const BufferPointer to =
        make_buffer(account_, is_gradient ? MemoryKind::workspace : MemoryKind::activations, bytes_to);
    // What capacity left empty has no rows.
    if (!is_outward) backend_.fill_zero(to->data(), to->bytes());
    backend_.exchange(members, from->view(context_.compute), is_outward ? exchange.sent : exchange.received,
                      to->view(context_.compute), is_outward ? exchange.received : exchange.sent, tag + 1);
    from = to;
}

RankExecutor::KeyPieces RankExecutor::key_pieces(Buffer& all) const {
    const TensorView view = all.view(context_.compute);
    if (context_.context_parallel == 1) return {view, tensor_piece(view)};
    const std::int64_t own = view.elements() / context_.context_parallel;
    return {view, view.part(own * context_rank(), own)};
}

void RankExecutor::gather_keys(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const model::Operator& op = graph_.op(id);
    if (instruction.phase == ComputePhase::forward)
        take_over_activations(instruction.stage, instruction.micro_batch);
    const std::size_t size = core::whole_bytes(model::gathered_key_bytes(graph_, op, context_));
    const BufferPointer pieces = make_buffer(account_, MemoryKind::workspace, size);
    const BufferPointer& packed = state.tensors[plan.storage[op.inputs[0]]];
    core::require(packed != nullptr, "keys are there before they are gathered");
    const KeyPieces keys_of = key_pieces(*pieces);
    backend_.operators().pack_keys(id, packed->view(context_.compute), keys_of.own);
    reduce(instruction, keys_of.all, tag);
    BufferPointer keys = make_buffer(account_, MemoryKind::workspace, size);
    backend_.operators().order_keys(id, keys_of.all, keys->view(context_.compute));
    state.keys[index] = std::move(keys);
}

void RankExecutor::scatter_key_gradients(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const auto found = state.key_gradients.find(index);
    if (found == state.key_gradients.end()) return;  // nothing came back to this attention
    const BufferPointer pieces = make_buffer(account_, MemoryKind::workspace, found->second->bytes());
    const KeyPieces keys_of = key_pieces(*pieces);
    backend_.operators().split_key_gradients(id, found->second->view(context_.compute), keys_of.all);
    state.key_gradients.erase(found);
    reduce(instruction, keys_of.all, tag);
    backend_.operators().add_key_gradients(
        id, keys_of.own, gradient(state, plan, graph_.op(id).inputs[0])->view(context_.compute));
}

TensorView RankExecutor::exchanged_output(MicroBatch& state, const StagePlan& plan, std::int32_t op) const {
    const BufferPointer& saved = state.saved_contexts[op - plan.operators.begin];
    const model::TensorId output = graph_.operators[op].output;
    if (!saved || !model::keeps_exchanged_output(graph_.operators[op], context_)) return {};
    const std::size_t first = saved->bytes() - bytes(output);
    return {static_cast<std::byte*>(saved->data()) + first, type_of(output), shapes_[output]};
}

// Tokens of all heads for all tokens of some before an attention, and back after it. Arrays become others of
// the same size.
void RankExecutor::exchange_heads(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const model::Operator& op = graph_.op(id);
    const bool is_gradient = instruction.payload == PayloadKind::activation_gradient,
               is_before = state.by_heads.insert(index).second;
    if (!is_before) state.by_heads.erase(index);
    if (instruction.phase == ComputePhase::forward)
        take_over_activations(instruction.stage, instruction.micro_batch);
    const bool is_output = is_before == is_gradient;
    const model::TensorId tensor = is_output ? op.output : op.inputs[0];
    BufferPointer& array =
        is_gradient ? state.gradients[plan.gradient_storage[tensor]] : state.tensors[plan.storage[tensor]];
    if (!array) return;  // nothing came back to this attention
    if (const TensorView kept = exchanged_output(state, plan, index); kept && is_output && !is_gradient)
        backend_.copy(kept.data(), array->data(), array->bytes());
    const std::size_t size = array->bytes();
    const bool is_kept = !is_gradient && plan.is_saved[plan.storage[tensor]];
    const MemoryKind kind = is_kept ? MemoryKind::activations : MemoryKind::workspace;
    const auto moved = [&](BufferPointer& from, bool to_shares, bool has_all_tokens) {
        BufferPointer to = make_buffer(account_, to_shares ? MemoryKind::workspace : kind, size);
        backend_.operators().move_heads(id, {is_output, has_all_tokens, to_shares},
                                        from->view(context_.compute), to->view(context_.compute));
        from.reset();
        return to;
    };
    BufferPointer shares = moved(array, true, !is_before);
    BufferPointer received = make_buffer(account_, MemoryKind::workspace, size);
    const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
    const TensorView sent = shares->view(context_.compute);
    const std::vector<std::size_t> counts(members.size(), std::size_t(sent.elements()) / members.size());
    backend_.exchange(members, sent, counts, received->view(context_.compute), counts, tag + !is_before);
    shares.reset();
    array = moved(received, false, is_before);
}

int RankExecutor::context_rank() const { return coordinates_.data % context_.context_parallel; }

// Forward a rank hands on what it got to the rank behind it, backward to the rank before it, gradients with
// it. A piece is at work, or was, on `keys`; `next` comes for the piece after it.
void RankExecutor::rotate_keys(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const model::Operator& op = graph_.op(id);
    const bool is_gradient = instruction.payload == PayloadKind::activation_gradient;
    if (is_gradient && !state.gradients[plan.gradient_storage[op.output]]) return;  // nothing came back
    if (instruction.phase == ComputePhase::forward)
        take_over_activations(instruction.stage, instruction.micro_batch);
    const std::size_t size = core::whole_bytes(model::passed_key_bytes(graph_, op, context_));
    Ring& ring = state.rings[index];
    if (instruction.piece == 0) {
        const BufferPointer& packed = state.tensors[plan.storage[op.inputs[0]]];
        core::require(packed != nullptr, "keys are there before they pass on");
        ring.keys = make_buffer(account_, MemoryKind::workspace, size);
        backend_.operators().pack_keys(id, packed->view(context_.compute), ring.keys->view(context_.compute));
    }
    const std::vector<int> members = schedule::members_of(program_, rank_, instruction);
    const int ranks = instruction.pieces, before = (context_rank() + ranks - 1) % ranks,
              behind = (context_rank() + 1) % ranks;
    const auto passed = [&](const BufferPointer& from, Tag message) {
        BufferPointer to = make_buffer(account_, MemoryKind::workspace, size);
        const TensorView sent = from->view(context_.compute);
        std::vector<std::size_t> out(members.size(), 0), in(members.size(), 0);
        out[is_gradient ? before : behind] = in[is_gradient ? behind : before] = sent.elements();
        backend_.exchange(members, sent, out, to->view(context_.compute), in, message);
        return to;
    };
    const Tag of_piece = tag + 2 * instruction.piece;
    if (!schedule::is_last_piece(instruction)) ring.next = passed(ring.keys, of_piece);
    if (is_gradient && instruction.piece > 0) ring.gradients = passed(ring.gradients, of_piece + 1);
}

void RankExecutor::attend_piece(MicroBatch& state, const Instruction& instruction) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const model::Operator& op = graph_.op(id);
    const bool is_again = instruction.phase == ComputePhase::recompute;
    Ring& ring = state.rings.at(index);
    backend_.begin_operators(state.position.segment);
    make_saved_context(state, plan, index, is_again);
    tensor(state, plan, op.output);
    Operands x = operands(state, instruction.stage, index);
    for (const model::ParameterId parameter_id : op.parameters)
        x.parameters.push_back(parameter(state, parameter_id));
    x.keys = ring.keys->view(context_.compute);
    x.key_rank = (context_rank() + instruction.pieces - instruction.piece) % instruction.pieces;
    backend_.operators().forward(id, x, state.position);
    backend_.end_operator(index, model::Phase::forward);
    if (!schedule::is_last_piece(instruction)) {
        ring.keys = std::move(ring.next);
        return;
    }
    // Backward begins with the keys that came last. What runs again alone begins with its own once more.
    if (!plan.plan_of(index).is_recomputed_alone || is_again)
        backend_.operators().unpack_keys(id, ring.keys->view(context_.compute), x.inputs[0]);
    state.rings.erase(index);
    finish_forward(state, plan, index, is_again);
}

void RankExecutor::attend_piece_backward(MicroBatch& state, const Instruction& instruction) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const std::int32_t index = instruction.operators.begin;
    const model::OperatorId id(index);
    const model::Operator& op = graph_.op(id);
    const BufferPointer dy = state.gradients[plan.gradient_storage[op.output]];
    const bool is_last = schedule::is_last_piece(instruction);
    if (dy) {
        Ring& ring = state.rings.at(index);
        backend_.begin_operators(state.position.segment);
        if (instruction.piece == 0) {
            ring.gradients = make_buffer(account_, MemoryKind::workspace, ring.keys->bytes());
            backend_.fill_zero(ring.gradients->data(), ring.gradients->bytes());
        }
        Operands x = operands(state, instruction.stage, index);
        for (const model::ParameterId parameter_id : op.parameters)
            x.parameters.push_back(parameter(state, parameter_id));
        x.keys = ring.keys->view(context_.compute);
        x.dkeys = ring.gradients->view(context_.compute);
        x.key_rank = (context_rank() + 1 + instruction.piece) % instruction.pieces;
        const TensorView dx = view_of(state, op, op.inputs[0], gradient(state, plan, op.inputs[0]));
        backend_.operators().backward_input(id, x, view_of(state, op, op.output, dy), {dx}, state.position);
        if (is_last) backend_.operators().add_key_gradients(id, ring.gradients->view(context_.compute), dx);
        else ring.keys = std::move(ring.next);
        backend_.end_operator(index, model::Phase::backward_input);
    }
    if (!is_last) return;
    state.rings.erase(index);
    if (instruction.phase == ComputePhase::backward_input && !op.parameters.empty())
        state.kept_gradients[index - plan.operators.begin] = dy;
    if (instruction.phase == ComputePhase::backward_input || op.parameters.empty())
        finish_backward(state, plan, index, instruction.phase);
}

void RankExecutor::sum_choices(const Instruction& instruction, MicroBatch& state, Tag tag) {
    const std::int32_t index = instruction.operators.begin;
    const Operands x = operands(state, instruction.stage, index);
    core::require(bool(x.saved_context),
                  "a router that divides its tokens with others has room for the choices of all");
    const TensorView all(x.saved_context.data(), core::DataType::fp32,
                         graph_.op(model::OperatorId(index)).attributes.experts);
    backend_.operators().choices(model::OperatorId(index), x, all);
    reduce(instruction, all, tag);
}

void RankExecutor::copy(const Instruction& instruction) {
    if (instruction.bucket) {
        BucketState& bucket = buckets_[*instruction.bucket];
        instruction.loads ? bucket.load_parameters_from_host() : bucket.send_gradient_to_host();
        return;
    }
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const auto slot = [&](const OffloadedArray& one) -> BufferPointer& {
        return one.is_saved_context ? state.saved_contexts[one.index] : state.tensors[one.index];
    };
    if (instruction.loads) {
        const auto comes_back = [&](const OffloadedArray& one) {
            return one.unit == instruction.operators.begin;
        };
        for (const OffloadedArray& one : state.offloaded) {
            if (!comes_back(one)) continue;
            slot(one) = make_buffer(account_, MemoryKind::activations, one.bytes);
            offload_->take(one.handle, slot(one)->data(), one.bytes);
        }
        std::erase_if(state.offloaded, comes_back);
        return;
    }
    const auto leave = [&](bool is_saved_context, std::int32_t index) {
        OffloadedArray one{is_saved_context, index, 0, instruction.operators.begin, 0};
        BufferPointer& buffer = slot(one);
        if (!buffer) return;
        one.bytes = buffer->bytes();
        one.handle = offload_->put(buffer->data(), one.bytes);
        buffer.reset();
        state.offloaded.push_back(one);
    };
    for (const StagePlan::UnitPlan& unit : plan.units) {
        if (unit.operators != instruction.operators) continue;
        for (const model::TensorId storage : unit.storages) leave(false, storage.index);
        for (std::int32_t i = unit.operators.begin; i < unit.operators.end; ++i)
            leave(true, i - plan.operators.begin);
    }
}

}  // namespace exec
