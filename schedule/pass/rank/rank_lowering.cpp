#include "schedule/pass/rank/rank_lowering.h"

#include "core/index/integers.h"

#include <algorithm>

namespace schedule {

RankLowering::RankLowering(const Program& program, const model::ModelGraph* graph, const Schedule& order,
                           const LowerOptions& options,
                           const std::vector<std::vector<ActivationFootprint>>& footprints, int rank)
    : program_(program),
      plan_(program.plan),
      graph_(graph),
      order_(order),
      options_(options),
      footprints_(footprints),
      rank_(rank),
      trains_(!order.is_forward_only),
      list_(result_),
      buckets_(graph ? buckets_of_rank(*graph, plan_, program.stages, rank, program.directions)
                     : RankBuckets()),
      reductions_(program, buckets_, result_, list_, frontier_),
      update_(program, result_, reductions_, list_, frontier_),
      versions_(order.micro_batches) {
    result_.pipeline = rank;
    result_.buckets = buckets_.buckets;
    prepare();
}

RankProgram RankLowering::lower() {
    const bool updates = graph_ && trains_ && options_.has_optimizer;
    if (graph_) hold_state();
    if (graph_ && trains_) {
        Instruction zero;
        zero.kind = InstructionKind::zero_gradients;
        frontier_.last_step = list_.append(zero);
    }
    const std::vector<Action>& actions = order_.actions[rank_];
    for (std::size_t i = 0; i < actions.size(); ++i) {
        const Action& action = actions[i];
        switch (action.kind) {
            case ActionKind::forward: lower_forward(local(action.stage), action.micro_batch); break;
            case ActionKind::backward:
                lower_backward(local(action.stage), action.micro_batch, completes_gradients_[i] != 0);
                break;
            case ActionKind::backward_input: lower_input(local(action.stage), action.micro_batch); break;
            case ActionKind::backward_weight:
                lower_weight(local(action.stage), action.micro_batch, completes_gradients_[i] != 0);
                break;
            case ActionKind::optimizer_step:
                if (updates && is_asynchronous()) update_between(action.micro_batch);
                break;
            // Recomputation follows from the plan.
            case ActionKind::recompute:
            // Transfers, sharding and synchronous updates of an order are not read: this lowering makes its
            // own.
            case ActionKind::send_forward:
            case ActionKind::receive_forward:
            case ActionKind::send_backward:
            case ActionKind::receive_backward:
            case ActionKind::unshard:
            case ActionKind::reshard:
            case ActionKind::reduce_gradient: break;
        }
    }
    if (updates && !is_asynchronous()) reductions_.finish();
    if (graph_) update_.reduce_loss(loss_ready_);
    if (updates && plan_.optimizer.gradient_clipping > 0) update_.take_gradient_norm();
    if (updates && !is_asynchronous()) update_.update();
    return std::move(result_);
}

void RankLowering::find_last_backwards() {
    const std::vector<Action>& actions = order_.actions[rank_];
    completes_gradients_.assign(actions.size(), 0);
    std::vector<std::int64_t> latest(program_.stages.size(), -1);
    const auto mark = [&] {
        for (std::int64_t& position : latest) {
            if (position >= 0) completes_gradients_[position] = 1;
            position = -1;
        }
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind == ActionKind::backward || actions[i].kind == ActionKind::backward_weight)
            latest[actions[i].stage] = i;
        if (actions[i].kind == ActionKind::optimizer_step && is_asynchronous()) mark();
    }
    mark();
}

void RankLowering::prepare() {
    local_of_.assign(program_.stages.size(), -1);
    find_last_backwards();
    const int micro_batches = order_.micro_batches;
    const std::vector<Action>& actions = order_.actions[rank_];
    for (const std::int32_t s : core::indices(program_.stages)) {
        const StageInfo& info = program_.stages[s];
        if (info.rank != rank_) continue;
        local_of_[s] = core::count_of(stages_);
        LocalStage stage;
        stage.index = s;
        stage.footprints = &footprints_[s];
        stage.has_before = !program_.is_first_stage(stage.index) && (!graph_ || info.receives);
        stage.has_after = !program_.is_last_stage(stage.index) && (!graph_ || info.sends);
        stage.is_before_here = !program_.is_first_stage(stage.index) && program_.stages[s - 1].rank == rank_;
        stage.is_after_here = !program_.is_last_stage(stage.index) && program_.stages[s + 1].rank == rank_;
        const auto message = [&](core::OptionalIndex tensors) {
            core::Bytes bytes;
            if (tensors)
                for (const model::TensorId tensor : program_.tensor_lists[*tensors])
                    bytes += model::tensor_bytes(*graph_, tensor, plan_.cost_context());
            return bytes;
        };
        stage.message_before = message(info.receives);
        stage.message_after = message(info.sends);
        stage.splits_backward = std::any_of(actions.begin(), actions.end(), [&](const Action& action) {
            return action.stage == stage.index && action.kind == ActionKind::backward_input;
        });
        for (auto* buffers : {&stage.received, &stage.received_saved, &stage.saved, &stage.saved_for_weight,
                              &stage.kept_for_weight, &stage.received_gradient})
            buffers->assign(micro_batches, no_buffer);
        stage.key_value_gradients.emplace(program_);
        stages_.push_back(std::move(stage));
    }
    for (LocalStage& stage : stages_) prepare_recipes(stage);
    if (!graph_ || !trains_ || plan_.offload == Offload::none) return;
    std::vector<OffloadedActivations::Stage> offloaded;
    for (const LocalStage& stage : stages_)
        offloaded.push_back({stage.index, &stage.footprints->front().offloadable, stage.splits_backward});
    offload_.emplace(plan_, actions, micro_batches, std::move(offloaded), list_, frontier_);
}

void RankLowering::prepare_recipes(LocalStage& stage) {
    const StageInfo& info = program_.stages[stage.index];
    if (!graph_) {
        const auto bare = [](ComputePhase phase) {
            Recipe recipe(1);
            recipe[0].steps.emplace_back();
            recipe[0].steps[0].phase = phase;
            return recipe;
        };
        stage.forward = bare(ComputePhase::forward);
        stage.backward = stage.last_backward = bare(ComputePhase::backward);
        stage.input = bare(ComputePhase::backward_input);
        stage.weight = stage.last_weight = bare(ComputePhase::backward_weight);
        return;
    }
    const RecipeMaker maker(*graph_, plan_, stage.index, info, buckets_);
    stage.forward = maker.forward();
    if (!trains_) return;

    const std::int32_t operators = info.operators.size();
    Reductions every, last, begins;
    if (options_.has_optimizer && plan_.layout.data > 1) {
        every.resize(operators);
        last.resize(operators);
        begins.resize(operators);
        for (const std::int32_t b : core::indices(buckets_.buckets)) {
            // Of stages in one direction the lowest runs backward last; stages of two directions see other
            // micro-batches each.
            const std::vector<BucketUse>& uses = buckets_.uses[b];
            const auto own = program_.directions == 1
                                 ? uses.begin()
                                 : std::find_if(uses.begin(), uses.end(), [&](const BucketUse& use) {
                                       return use.stage == stage.index;
                                   });
            if (own == uses.end() || own->stage != stage.index) continue;
            const BucketUse& use = *own;
            const std::int32_t lowest = use.lowest_operator - info.operators.begin;
            const std::int32_t highest = use.highest_operator - info.operators.begin;
            if (reductions_.reduces_every_micro_batch(b)) {
                every[lowest].push_back(b);
                last[lowest].push_back(b);
                if (reductions_.has_gradient_of_the_pass(b)) begins[highest].push_back(b);
            } else if (plan_.overlaps_gradient_reduction && !reductions_.is_reduced_at_the_end(b)) {
                last[lowest].push_back(b);
            }
        }
    }
    stage.backward = maker.backward(ComputePhase::backward, every, begins);
    stage.last_backward = maker.backward(ComputePhase::backward, last, begins);
    stage.input = maker.backward(ComputePhase::backward_input, {}, {});
    stage.weight = maker.backward(ComputePhase::backward_weight, every, begins);
    stage.last_weight = maker.backward(ComputePhase::backward_weight, last, begins);
}

void RankLowering::make_room(std::int32_t index, std::int32_t micro_batch, PayloadKind payload) {
    LocalStage& stage = local(index);
    const ActivationFootprint& f = footprint(stage, micro_batch);
    if (payload == PayloadKind::activation) {
        stage.received[micro_batch] = list_.buffer(MemoryKind::activations, f.received);
        stage.received_saved[micro_batch] = list_.buffer(MemoryKind::activations, f.received_saved);
        takes_.push_back(stage.received[micro_batch]);
        takes_.push_back(stage.received_saved[micro_batch]);
    } else {
        stage.received_gradient[micro_batch] = list_.buffer(MemoryKind::activations, f.received_gradient);
        takes_.push_back(stage.received_gradient[micro_batch]);
    }
}

// Activations go to the next stage, their gradients to the one before: what is sent forward or received
// backward crosses the stage's end, the rest its beginning.
Instruction RankLowering::message(const LocalStage& stage, std::int32_t micro_batch, PayloadKind payload,
                                  bool sends) const {
    const bool is_forward = payload == PayloadKind::activation, crosses_end = is_forward == sends;
    const StageInfo& info = program_.stages[stage.index];
    Instruction message;
    message.kind = sends ? InstructionKind::send : InstructionKind::receive;
    message.stream = sends ? Stream::pipeline_send : Stream::pipeline_receive;
    message.phase = is_forward ? ComputePhase::forward : ComputePhase::backward;
    message.group = GroupKind::pipeline;
    message.payload = payload;
    message.stage = stage.index;
    message.micro_batch = micro_batch;
    message.peer = program_.stages[stage.index + (crosses_end ? 1 : -1)].rank;
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
    frontier_.pending.push_back(list_.append(message(stage, micro_batch, payload, false)));
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
    const std::uint32_t buffer =
        list_.buffer(MemoryKind::communication, is_forward ? footprint(stage, micro_batch).sent
                                                           : footprint(stage, micro_batch).sent_gradient);
    takes_.push_back(buffer);
    return buffer;
}

void RankLowering::send(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload,
                        std::uint32_t buffer) {
    const bool is_forward = payload == PayloadKind::activation;
    if (is_forward ? !stage.has_after || stage.is_after_here : !stage.has_before || stage.is_before_here)
        return;
    list_.wait_for(frontier_.last_step);
    list_.give_back(buffer);
    list_.append(message(stage, micro_batch, payload, true));
}

void RankLowering::lower_forward(LocalStage& stage, std::int32_t micro_batch) {
    const ActivationFootprint& f = footprint(stage, micro_batch);
    arrive(stage, micro_batch, PayloadKind::activation);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation);
    versions_.begin_forward(micro_batch);
    // With a split backward, what weights do not need is given back before the rest. What arrived counts to
    // the part that can hold it.
    const auto away =
        offload_ ? offload_->leaving(stage.index, micro_batch) : OffloadedActivations::Leaving();
    const core::Bytes for_weight =
        stage.splits_backward ? f.saved_for_weight - away.for_weight : core::Bytes(0);
    const core::Bytes for_input = f.saved - for_weight - f.reused - away.all;
    stage.key_value_gradients->begin_forward(list_, micro_batch, f, takes_);
    const bool arrived_for_input = for_input >= f.received_saved;
    stage.saved[micro_batch] =
        list_.buffer(MemoryKind::activations, arrived_for_input ? for_input - f.received_saved : for_input);
    stage.saved_for_weight[micro_batch] =
        list_.buffer(MemoryKind::activations, arrived_for_input ? for_weight : for_weight - f.received_saved);
    const std::uint32_t transient = list_.buffer(MemoryKind::workspace, f.forward_transient);
    run(stage.forward, stage, micro_batch,
        {stage.saved[micro_batch], stage.saved_for_weight[micro_batch], transient},
        {transient, stage.received[micro_batch]});
    stage.received[micro_batch] = no_buffer;
    if (!arrived_for_input)
        std::swap(stage.received_saved[micro_batch],
                  stage.received[micro_batch]);  // it stays until backward_weight
    if (graph_ && program_.is_last_stage(stage.index)) loss_ready_ = frontier_.last_step;
    send(stage, micro_batch, PayloadKind::activation, sent);
}

void RankLowering::lower_backward(LocalStage& stage, std::int32_t micro_batch, bool is_last) {
    arrive(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t transient =
        list_.buffer(MemoryKind::workspace, footprint(stage, micro_batch).backward_transient);
    gives_back_too_ = versions_.begin_backward(micro_batch);
    stage.key_value_gradients->begin_backward(list_, micro_batch, footprint(stage, micro_batch), takes_);
    completes_gradients_now_ = is_last;
    run(is_last ? stage.last_backward : stage.backward, stage, micro_batch, {transient},
        {transient, stage.saved[micro_batch], stage.saved_for_weight[micro_batch],
         stage.received_saved[micro_batch], stage.received[micro_batch], stage.received_gradient[micro_batch],
         stage.key_value_gradients->of(micro_batch), stage.key_value_gradients->reused_for(micro_batch)});
    send(stage, micro_batch, PayloadKind::activation_gradient, sent);
}

void RankLowering::lower_input(LocalStage& stage, std::int32_t micro_batch) {
    arrive(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t transient =
        list_.buffer(MemoryKind::workspace, footprint(stage, micro_batch).input_transient);
    stage.kept_for_weight[micro_batch] =
        list_.buffer(MemoryKind::activations, footprint(stage, micro_batch).kept_for_weight);
    run(stage.input, stage, micro_batch, {transient, stage.kept_for_weight[micro_batch]},
        {transient, stage.saved[micro_batch], stage.received_saved[micro_batch],
         stage.received_gradient[micro_batch]});
    send(stage, micro_batch, PayloadKind::activation_gradient, sent);
}

void RankLowering::lower_weight(LocalStage& stage, std::int32_t micro_batch, bool is_last) {
    const std::uint32_t transient =
        list_.buffer(MemoryKind::workspace, footprint(stage, micro_batch).weight_transient);
    completes_gradients_now_ = is_last;
    run(is_last ? stage.last_weight : stage.weight, stage, micro_batch, {transient},
        {transient, stage.saved_for_weight[micro_batch], stage.received[micro_batch],
         stage.kept_for_weight[micro_batch]});
}

void RankLowering::take_all() {
    for (const std::uint32_t buffer : takes_) list_.take(buffer);
    takes_.clear();
}

void RankLowering::gather(const StepGroup& group, std::uint32_t after) {
    for (const std::int32_t bucket : group.gathers) {
        const ParameterBucket& b = result_.buckets[bucket];
        const std::uint32_t buffer = list_.buffer(
            MemoryKind::parameters, b.padded_elements * core::size_of(plan_.precision.parameters));
        list_.take(buffer);
        next_gathered_.push_back(buffer);
        next_gathers_.push_back(append_collective(
            list_, plan_, result_, bucket,
            {CollectiveKind::all_gather, groups_of(plan_.layout, b).shard, PayloadKind::parameter, false},
            after));
    }
}

void RankLowering::run(const Recipe& recipe, const LocalStage& stage, std::int32_t micro_batch, Buffers takes,
                       Buffers gives_back) {
    const bool prefetches = plan_.overlaps_parameter_gathering;
    for (std::size_t g = 0; g < recipe.size(); ++g) {
        const StepGroup& group = recipe[g];
        if (!group.gathers.empty() || g > 0) {
            // At most one group ahead: the parameters of group g are gathered while group g - 1 runs.
            if (g == 0 || !prefetches) gather(group, prefetches ? group_end_before_ : frontier_.last_step);
            std::swap(gathered_, next_gathered_);
            std::swap(gathers_, next_gathers_);
            next_gathered_.clear();
            next_gathers_.clear();
            frontier_.pending.insert(frontier_.pending.end(), gathers_.begin(), gathers_.end());
            if (prefetches && g + 1 < recipe.size()) gather(recipe[g + 1], group_end_);
        }
        // Buffers are taken by the first instruction that works and given back by the last, of the pass or of
        // the unit.
        bool takes_now = g == 0;
        std::size_t last = group.steps.size();
        for (std::size_t i = 0; i < group.steps.size(); ++i)
            if (group.steps[i].works()) last = i;
        for (std::size_t i = 0; i < group.steps.size(); ++i) {
            if (group.steps[i].works() && takes_now) {
                takes_.insert(takes_.end(), takes.begin(), takes.end());
                take_all();
                takes_now = false;
            }
            if (i == last) {
                for (const std::uint32_t buffer : gathered_) list_.give_back(buffer);
                gathered_.clear();
                if (g + 1 == recipe.size()) {
                    for (const std::uint32_t buffer : gives_back) list_.give_back(buffer);
                    for (const std::uint32_t buffer : gives_back_too_) list_.give_back(buffer);
                    gives_back_too_.clear();
                }
            }
            if (offload_ && group.steps[i].works() && (i == last || is_last_of_unit(group, i)))
                offload_->end_unit();
            run_step(group.steps[i], stage, micro_batch);
        }
        group_end_before_ = group_end_;
        group_end_ = frontier_.last_step;
    }
}

bool RankLowering::is_last_of_unit(const StepGroup& group, std::size_t step) {
    for (std::size_t i = step + 1; i < group.steps.size(); ++i) {
        if (group.steps[i].works()) return false;
        if (group.steps[i].kind == Step::Kind::unit) return true;
    }
    return true;
}

void RankLowering::run_step(const Step& step, const LocalStage& stage, std::int32_t micro_batch) {
    if (step.kind == Step::Kind::reduce) {
        const bool has_reduction =
            reductions_.reduce(*step.bucket, frontier_.last_step, completes_gradients_now_);
        if (has_reduction && !plan_.overlaps_gradient_reduction)
            frontier_.pending.push_back(reductions_.last_on_data());
        return;
    }
    if (step.kind == Step::Kind::unit) {
        if (offload_) offload_->begin_unit(stage.index, micro_batch, *step.unit);
        return;
    }
    if (step.kind == Step::Kind::store) {
        if (offload_) offload_->store(stage.index, micro_batch, *step.unit);
        return;
    }
    Instruction instruction;
    instruction.phase = step.phase;
    instruction.stage = stage.index;
    instruction.micro_batch = micro_batch;
    instruction.operators = step.operators;
    if (step.kind == Step::Kind::compute) {
        if (!step.begins.empty()) reductions_.begin_gradients(step.begins);
        for (const std::uint32_t index : frontier_.pending) list_.wait_for(index);
        frontier_.pending.clear();
        before_last_compute_ = frontier_.last_step;
        frontier_.last_step = list_.append(instruction);
        return;
    }
    instruction.kind = InstructionKind::collective;
    instruction.stream = Stream::tensor;
    instruction.collective = step.collective;
    instruction.group = step.group;
    instruction.payload = step.payload;
    instruction.bytes = step.bytes;
    if (step.starts_early) {
        list_.wait_for(before_last_compute_);
        frontier_.pending.push_back(list_.append(instruction));
        return;
    }
    for (const std::uint32_t index : frontier_.pending) list_.wait_for(index);
    list_.wait_for(frontier_.last_step);
    frontier_.last_step = list_.append(instruction);
    frontier_.pending.assign(1, frontier_.last_step);
}

void RankLowering::update_between(std::int32_t index) {
    reductions_.finish();
    for (const std::uint32_t buffer : versions_.begin_update(list_, plan_, result_)) takes_.push_back(buffer);
    take_all();
    const std::uint32_t first = list_.size();
    update_.update();
    for (std::uint32_t i = first; i < list_.size(); ++i)
        if (list_[i].kind == InstructionKind::optimizer_step || list_[i].kind == InstructionKind::update_norm)
            result_.instructions[i].micro_batch = index;
    if (versions_.updates() == program_.updates()) return;
    Instruction zero;
    zero.kind = InstructionKind::zero_gradients;
    frontier_.last_step = list_.append(zero);
}

// What the rank holds from start to end.
void RankLowering::hold_state() {
    double parameters = 0, gradients = 0, states = 0;
    for (const std::int32_t b : core::indices(result_.buckets)) {
        const double whole = result_.buckets[b].padded_elements;
        const double pieces = result_.buckets[b].pieces;
        const auto share = [&](Sharding what) { return plan_.sharding >= what ? whole / pieces : whole; };
        parameters += share(Sharding::parameters);
        gradients += share(Sharding::gradients);
        // A gradient that several stages of the rank add to stays whole between their passes.
        if (reductions_.reduces_every_micro_batch(b) && !reductions_.has_gradient_of_the_pass(b))
            gradients += whole;
        states += share(Sharding::optimizer);
    }
    list_.persistent(MemoryKind::parameters, parameters * core::size_of(plan_.precision.parameters));
    if (!trains_) return;
    list_.persistent(MemoryKind::gradients, gradients * core::size_of(plan_.precision.gradients));
    if (!options_.has_optimizer) return;
    list_.persistent(MemoryKind::optimizer,
                     states * (state_bytes_per_parameter(plan_.optimizer) +
                               core::Bytes(plan_.precision.has_master_parameters ? 4 : 0)));
}

}  // namespace schedule
