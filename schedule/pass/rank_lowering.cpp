#include "schedule/pass/rank_lowering.h"

#include <algorithm>
#include <utility>

#include "core/index/integers.h"
#include "schedule/pass/joined_steps.h"
#include "schedule/pass/recompute.h"

namespace schedule {

RankLowering::RankLowering(const Program& program, const model::ModelGraph* graph, const Schedule& order,
                           const LowerOptions& options,
                           const std::vector<std::vector<ActivationFootprint>>& footprints, int rank)
    : draft_(program, graph, order, options, footprints, rank),
      passes_(lowering_passes(draft_)),
      local_of_(program.stages.size(), -1) {
    find_last_backwards();
    for (const RankDraft::Stage& stage : draft_.stages) {
        local_of_[stage.index] = core::count_of(stages_);
        stages_.push_back(local_stage(stage));
    }
}

void RankLowering::make_room_like(const RankProgram& other) {
    const auto reserve = [](auto& list, const auto& like) { list.reserve(like.size() + like.size() / 16); };
    reserve(draft_.result.instructions, other.instructions);
    reserve(draft_.result.after_pool, other.after_pool);
    reserve(draft_.result.buffer_pool, other.buffer_pool);
    reserve(draft_.result.buffers, other.buffers);
}

RankProgram RankLowering::lower() {
    for (const std::unique_ptr<LoweringPass>& pass : passes_) pass->begin_step();
    for (std::size_t i = 0; i < draft_.actions().size(); ++i)
        lower(draft_.actions()[i], completes_gradients_[i] != 0);
    end({.is_of_step = true, .updates = draft_.updates() && !draft_.is_asynchronous()});
    return std::move(draft_.result);
}

void RankLowering::lower(const Action& action, bool is_last) {
    switch (action.kind) {
        case ActionKind::forward: return lower_forward(local(action.stage), action.micro_batch);
        case ActionKind::backward: return lower_backward(local(action.stage), action.micro_batch, is_last);
        case ActionKind::backward_input: return lower_input(local(action.stage), action.micro_batch);
        case ActionKind::backward_weight:
            return lower_weight(local(action.stage), action.micro_batch, is_last);
        case ActionKind::optimizer_step:
            if (draft_.updates() && draft_.is_asynchronous())
                end({.is_of_step = false, .updates = true, .update = action.micro_batch});
            return;
        // Recomputation follows from the plan.
        case ActionKind::recompute:
        // Transfers, sharding and synchronous updates of an order are not read: this lowering makes its own.
        case ActionKind::send_forward:
        case ActionKind::receive_forward:
        case ActionKind::send_backward:
        case ActionKind::receive_backward:
        case ActionKind::unshard:
        case ActionKind::reshard:
        case ActionKind::reduce_gradient: return;
    }
}

void RankLowering::find_last_backwards() {
    const std::vector<Action>& actions = draft_.actions();
    completes_gradients_.assign(actions.size(), 0);
    std::vector<std::int64_t> latest(draft_.program.stages.size(), -1);
    const auto mark = [&] {
        for (std::int64_t& position : latest) {
            if (position >= 0) completes_gradients_[position] = 1;
            position = -1;
        }
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == ActionKind::backward || actions[i].kind == ActionKind::backward_weight)
            latest[actions[i].stage] = i;
        if (actions[i].kind == ActionKind::optimizer_step && draft_.is_asynchronous()) mark();
    }
    mark();
}

RankLowering::LocalStage RankLowering::local_stage(const RankDraft::Stage& given) const {
    const Program& program = draft_.program;
    const std::int32_t s = given.index;
    const StageInfo& info = program.stages[s];
    LocalStage stage;
    stage.index = s;
    if (draft_.graph) stage.units = units_of(*draft_.graph, info.operators);
    stage.has_before = !program.is_first_stage(s) && (!draft_.graph || info.receives);
    stage.has_after = !program.is_last_stage(s) && (!draft_.graph || info.sends);
    stage.is_before_here = !program.is_first_stage(s) && program.stages[s - 1].rank == draft_.rank;
    stage.is_after_here = !program.is_last_stage(s) && program.stages[s + 1].rank == draft_.rank;
    const auto message = [&](core::OptionalIndex tensors) {
        core::Bytes bytes;
        if (tensors)
            for (const model::TensorId tensor : program.tensor_lists[*tensors])
                bytes += model::tensor_bytes(*draft_.graph, tensor, draft_.plan.cost_context());
        return bytes;
    };
    stage.message_before = message(info.receives);
    stage.message_after = message(info.sends);
    for (auto* buffers : {&stage.received, &stage.received_saved, &stage.saved, &stage.saved_for_weight,
                          &stage.kept_for_weight, &stage.received_gradient})
        buffers->assign(draft_.order.micro_batches, no_buffer);
    return stage;
}

std::vector<char> RankLowering::runs_again(const LocalStage& stage) const {
    if (!draft_.graph) return {};
    return recomputed_units(*draft_.graph, stage.units, draft_.plan, stage.index);
}

const Recipe& RankLowering::recipe(LocalStage& stage, ComputePhase phase, bool is_last) {
    const auto [found, is_new] = stage.recipes.try_emplace({phase, is_last});
    if (is_new) {
        const RecipeContext context{.stage = stage.index,
                                    .operators = draft_.program.stages[stage.index].operators,
                                    .phase = phase,
                                    .completes_gradients = is_last,
                                    .units = stage.units,
                                    .runs_again = runs_again(stage)};
        found->second = RecipeDraft(context, passes_).make();
        if (draft_.options.joins_passes) join_steps(found->second, stage.index, draft_.result.parts);
    }
    return found->second;
}

void RankLowering::make_room(std::int32_t index, std::int32_t micro_batch, PayloadKind payload) {
    LocalStage& stage = local(index);
    const ActivationFootprint& f = footprint(index, micro_batch);
    if (payload == PayloadKind::activation) {
        stage.received[micro_batch] = draft_.list.buffer(MemoryKind::activations, f.received);
        stage.received_saved[micro_batch] = draft_.list.buffer(MemoryKind::activations, f.received_saved);
        takes_.push_back(stage.received[micro_batch]);
        takes_.push_back(stage.received_saved[micro_batch]);
    } else {
        stage.received_gradient[micro_batch] =
            draft_.list.buffer(MemoryKind::activations, f.received_gradient);
        takes_.push_back(stage.received_gradient[micro_batch]);
    }
}

// Activations go to the next stage, their gradients to the one before: what is sent forward or received
// backward crosses the stage's end, the rest its beginning.
Instruction RankLowering::message(const LocalStage& stage, std::int32_t micro_batch, PayloadKind payload,
                                  bool sends) const {
    const bool is_forward = payload == PayloadKind::activation, crosses_end = is_forward == sends;
    const StageInfo& info = draft_.program.stages[stage.index];
    Instruction message;
    message.kind = sends ? InstructionKind::send : InstructionKind::receive;
    message.stream = sends ? Stream::pipeline_send : Stream::pipeline_receive;
    message.phase = is_forward ? ComputePhase::forward : ComputePhase::backward;
    message.group = GroupKind::pipeline;
    message.payload = payload;
    message.stage = stage.index;
    message.micro_batch = micro_batch;
    message.peer = draft_.program.stages[stage.index + (crosses_end ? 1 : -1)].rank;
    message.tensors = crosses_end ? info.sends : info.receives;
    message.bytes = crosses_end ? stage.message_after : stage.message_before;
    return message;
}

void RankLowering::arrive(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload) {
    const bool is_forward = payload == PayloadKind::activation;
    if (is_forward ? !stage.has_before || stage.is_before_here : !stage.has_after || stage.is_after_here)
        return;
    make_room(stage.index, micro_batch, payload);
    take_all();
    draft_.frontier.pending.push_back(draft_.list.append(message(stage, micro_batch, payload, false)));
}

// The buffer of what a pass sends, or room at the neighbour on this rank; to be taken by the pass's first
// step.
std::uint32_t RankLowering::depart(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload) {
    const bool is_forward = payload == PayloadKind::activation;
    if (is_forward ? !stage.has_after : !stage.has_before) return no_buffer;
    if (is_forward ? stage.is_after_here : stage.is_before_here) {
        make_room(stage.index + (is_forward ? 1 : -1), micro_batch, payload);
        return no_buffer;
    }
    const ActivationFootprint& f = footprint(stage.index, micro_batch);
    const std::uint32_t buffer =
        draft_.list.buffer(MemoryKind::communication, is_forward ? f.sent : f.sent_gradient);
    takes_.push_back(buffer);
    return buffer;
}

void RankLowering::send(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload,
                        std::uint32_t buffer) {
    const bool is_forward = payload == PayloadKind::activation;
    if (is_forward ? !stage.has_after || stage.is_after_here : !stage.has_before || stage.is_before_here)
        return;
    draft_.list.wait_for(draft_.frontier.last_step);
    draft_.list.give_back(buffer);
    draft_.list.append(message(stage, micro_batch, payload, true));
}

StagePass RankLowering::begin(const LocalStage& stage, std::int32_t micro_batch, ComputePhase phase,
                              bool is_last) {
    const std::int32_t local = local_of_[stage.index];
    return {.stage = draft_.stages[local],
            .local = local,
            .micro_batch = micro_batch,
            .phase = phase,
            .footprint = footprint(stage.index, micro_batch),
            .completes_gradients = is_last,
            .takes = takes_};
}

void RankLowering::lower_forward(LocalStage& stage, std::int32_t micro_batch) {
    arrive(stage, micro_batch, PayloadKind::activation);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation);
    StagePass pass = begin(stage, micro_batch, ComputePhase::forward, false);
    begin_pass(pass);
    // With a split backward, what weights do not need is given back before the rest. What arrived counts to
    // the part that can hold it.
    const ActivationFootprint& f = pass.footprint;
    const core::Bytes for_weight =
        pass.stage.splits_backward ? f.saved_for_weight - pass.leaves_for_weight : core::Bytes(0);
    const core::Bytes for_input = f.saved - for_weight - f.reused - pass.leaves;
    const bool arrived_for_input = for_input >= f.received_saved;
    stage.saved[micro_batch] = draft_.list.buffer(
        MemoryKind::activations, arrived_for_input ? for_input - f.received_saved : for_input);
    stage.saved_for_weight[micro_batch] = draft_.list.buffer(
        MemoryKind::activations, arrived_for_input ? for_weight : for_weight - f.received_saved);
    const std::uint32_t transient = draft_.list.buffer(MemoryKind::workspace, f.forward_transient);
    takes_.insert(takes_.end(), {stage.saved[micro_batch], stage.saved_for_weight[micro_batch], transient});
    pass.gives_back.insert(pass.gives_back.end(), {transient, stage.received[micro_batch]});
    run(stage, pass);
    stage.received[micro_batch] = no_buffer;
    if (!arrived_for_input)
        std::swap(stage.received_saved[micro_batch],
                  stage.received[micro_batch]);  // it stays until backward_weight
    send(stage, micro_batch, PayloadKind::activation, sent);
}

void RankLowering::lower_backward(LocalStage& stage, std::int32_t micro_batch, bool is_last) {
    arrive(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation_gradient);
    StagePass pass = begin(stage, micro_batch, ComputePhase::backward, is_last);
    const std::uint32_t transient =
        draft_.list.buffer(MemoryKind::workspace, pass.footprint.backward_transient);
    pass.gives_back = {transient,
                       stage.saved[micro_batch],
                       stage.saved_for_weight[micro_batch],
                       stage.received_saved[micro_batch],
                       stage.received[micro_batch],
                       stage.received_gradient[micro_batch]};
    begin_pass(pass);
    takes_.push_back(transient);
    run(stage, pass);
    send(stage, micro_batch, PayloadKind::activation_gradient, sent);
}

void RankLowering::lower_input(LocalStage& stage, std::int32_t micro_batch) {
    arrive(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation_gradient);
    StagePass pass = begin(stage, micro_batch, ComputePhase::backward_input, false);
    const std::uint32_t transient = draft_.list.buffer(MemoryKind::workspace, pass.footprint.input_transient);
    stage.kept_for_weight[micro_batch] =
        draft_.list.buffer(MemoryKind::activations, pass.footprint.kept_for_weight);
    pass.gives_back = {transient, stage.saved[micro_batch], stage.received_saved[micro_batch],
                       stage.received_gradient[micro_batch]};
    begin_pass(pass);
    takes_.insert(takes_.end(), {transient, stage.kept_for_weight[micro_batch]});
    run(stage, pass);
    send(stage, micro_batch, PayloadKind::activation_gradient, sent);
}

void RankLowering::lower_weight(LocalStage& stage, std::int32_t micro_batch, bool is_last) {
    StagePass pass = begin(stage, micro_batch, ComputePhase::backward_weight, is_last);
    const std::uint32_t transient =
        draft_.list.buffer(MemoryKind::workspace, pass.footprint.weight_transient);
    pass.gives_back = {transient, stage.saved_for_weight[micro_batch], stage.received[micro_batch],
                       stage.kept_for_weight[micro_batch]};
    begin_pass(pass);
    takes_.push_back(transient);
    run(stage, pass);
}

void RankLowering::take_all() {
    for (const std::uint32_t buffer : takes_) draft_.list.take(buffer);
    takes_.clear();
}

void RankLowering::run(LocalStage& stage, const StagePass& pass) {
    const Recipe& steps = recipe(stage, pass.phase, pass.completes_gradients);
    for (std::size_t s = 0; s < steps.size(); ++s) {
        const Step& first = steps[s];
        perform(first, pass);
        // A reduction of gradients on the tensor stream holds up the next exchange there and no compute.
        if (first.parts_count > 0 && draft_.frontier.reduced_on_tensor == settled_reduction_) {
            const std::size_t last = s + first.parts_count - 1;
            while (s < last) perform(steps[++s], pass);
            append_joined(first, steps[last], pass);
        } else if (first.works()) {
            append(first, pass);
        }
    }
}

void RankLowering::perform(const Step& step, const StagePass& pass) {
    if (step.takes) take_all();
    for (const Hook& hook : step.hooks) {
        if (hook.pass) hook.pass->perform(hook, pass);
        else
            for (const std::uint32_t buffer : pass.gives_back) draft_.list.give_back(buffer);
    }
}

void RankLowering::append_joined(const Step& first, const Step& last, const StagePass& pass) {
    Frontier& frontier = draft_.frontier;
    Instruction instruction = instruction_of(first, pass.stage.index, pass.micro_batch);
    instruction.parts_begin = first.parts_begin;
    instruction.parts_count = first.parts_count;
    for (const Instruction& part : draft_.result.parts_of(instruction)) {
        instruction.operators.begin = std::min(instruction.operators.begin, part.operators.begin);
        instruction.operators.end = std::max(instruction.operators.end, part.operators.end);
    }
    for (const std::uint32_t index : frontier.pending) draft_.list.wait_for(index);
    frontier.pending.clear();
    before_last_compute_ = frontier.last_step;
    frontier.last_step = draft_.list.append(instruction);
    if (last.kind == Step::Kind::collective) frontier.pending.assign(1, frontier.last_step);
}

void RankLowering::append(const Step& step, const StagePass& pass) {
    InstructionList& list = draft_.list;
    Frontier& frontier = draft_.frontier;
    const Instruction instruction = instruction_of(step, pass.stage.index, pass.micro_batch);
    if (step.kind == Step::Kind::compute) {
        // Pieces go on beside the exchanges of those before them. Of a ring they need the one before, and
        // what follows the last one beside it.
        const bool waits = step.pieces == 1 || step.piece == 0;
        const bool is_piece_of_ring = step.is_in_ring && step.piece < step.pieces;
        if (is_piece_of_ring && step.piece > 0) list.wait_for(rotations_[(step.piece - 1) % 2]);
        for (const std::uint32_t index : frontier.pending)
            if (waits) list.wait_for(index);
        if (waits) frontier.pending.clear();
        before_last_compute_ = frontier.last_step;
        frontier.last_step = list.append(instruction);
        if (step.pieces > 1 && step.piece < step.pieces) last_piece_ = frontier.last_step;
        const bool is_forward = step.phase == ComputePhase::forward || step.phase == ComputePhase::recompute;
        if (is_piece_of_ring && is_last_piece(instruction) && !is_forward)
            frontier.pending.push_back(rotations_[step.piece % 2]);
        return;
    }
    if (step.starts_early) {
        list.wait_for(before_last_compute_);
        frontier.pending.push_back(list.append(instruction));
        return;
    }
    if (step.is_in_ring) {
        const bool carries_gradients = step.payload == PayloadKind::activation_gradient;
        if (step.piece == 0)
            for (const std::uint32_t index : frontier.pending) list.wait_for(index);
        if (step.piece == 0 || carries_gradients) list.wait_for(frontier.last_step);
        rotations_[step.piece % 2] = list.append(instruction);
        return;
    }
    if (step.pieces > 1) {
        list.wait_for(last_piece_);
        const std::uint32_t exchange = list.append(instruction);
        // Those before it are on the same stream.
        if (!is_last_piece(instruction)) return;
        frontier.last_step = exchange;
        frontier.pending.push_back(exchange);
        return;
    }
    for (const std::uint32_t index : frontier.pending) list.wait_for(index);
    list.wait_for(frontier.last_step);
    frontier.last_step = list.append(instruction);
    frontier.pending.assign(1, frontier.last_step);
    settled_reduction_ = frontier.reduced_on_tensor;
}

}  // namespace schedule
