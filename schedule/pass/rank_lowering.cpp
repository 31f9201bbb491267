#include "schedule/pass/rank_lowering.h"

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
      list_(result_) {
    result_.pipeline = rank;
    prepare();
}

RankProgram RankLowering::lower() {
    const bool updates = graph_ && trains_ && options_.has_optimizer;
    if (graph_) add_persistent();
    if (graph_ && trains_) {
        Instruction zero;
        zero.kind = InstructionKind::zero_gradients;
        last_step_ = list_.append(zero);
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
    if (updates && !is_asynchronous()) finish_reductions();
    if (graph_) reduce_loss();
    if (updates && plan_.optimizer.gradient_clipping > 0) take_gradient_norm();
    if (updates && !is_asynchronous()) update();
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
    if (graph_) buckets_ = buckets_of_rank(*graph_, plan_, program_.stages, rank_, program_.directions);
    result_.buckets = buckets_.buckets;
    full_gradient_.assign(buckets_.buckets.size(), no_buffer);
    local_of_.assign(program_.stages.size(), -1);
    find_last_backwards();
    version_of_.assign(order_.micro_batches, 0);
    replaced_parameters_.resize(version_of_.size());
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
    plan_offload();
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
            if (reduces_every_micro_batch(b)) {
                every[lowest].push_back(b);
                last[lowest].push_back(b);
                if (has_gradient_of_the_pass(b)) begins[highest].push_back(b);
            } else if (plan_.overlaps_gradient_reduction && !is_reduced_at_the_end(b)) {
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
    pending_.push_back(list_.append(message(stage, micro_batch, payload, false)));
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
    list_.wait_for(last_step_);
    list_.give_back(buffer);
    list_.append(message(stage, micro_batch, payload, true));
}

void RankLowering::lower_forward(LocalStage& stage, std::int32_t micro_batch) {
    const ActivationFootprint& f = footprint(stage, micro_batch);
    arrive(stage, micro_batch, PayloadKind::activation);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation);
    version_of_[micro_batch] = updates_done_;
    ++forwards_done_;
    // With a split backward, what weights do not need is given back before the rest. What arrived counts to
    // the part that can hold it.
    const Offloaded away = offloaded_bytes(stage, micro_batch);
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
    if (graph_ && program_.is_last_stage(stage.index)) loss_ready_ = last_step_;
    send(stage, micro_batch, PayloadKind::activation, sent);
}

void RankLowering::lower_backward(LocalStage& stage, std::int32_t micro_batch, bool is_last) {
    arrive(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t sent = depart(stage, micro_batch, PayloadKind::activation_gradient);
    const std::uint32_t transient =
        list_.buffer(MemoryKind::workspace, footprint(stage, micro_batch).backward_transient);
    gives_back_too_ = std::move(replaced_parameters_[micro_batch]);
    ++backwards_done_;
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
        next_gathers_.push_back(bucket_collective(bucket, CollectiveKind::all_gather,
                                                  groups_of(plan_.layout, b).shard, PayloadKind::parameter,
                                                  false, after));
    }
}

void RankLowering::run(const Recipe& recipe, const LocalStage& stage, std::int32_t micro_batch, Buffers takes,
                       Buffers gives_back) {
    const bool prefetches = plan_.overlaps_parameter_gathering;
    for (std::size_t g = 0; g < recipe.size(); ++g) {
        const StepGroup& group = recipe[g];
        if (!group.gathers.empty() || g > 0) {
            // At most one group ahead: the parameters of group g are gathered while group g - 1 runs.
            if (g == 0 || !prefetches) gather(group, prefetches ? group_end_before_ : last_step_);
            std::swap(gathered_, next_gathered_);
            std::swap(gathers_, next_gathers_);
            next_gathered_.clear();
            next_gathers_.clear();
            pending_.insert(pending_.end(), gathers_.begin(), gathers_.end());
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
            if (group.steps[i].works() && (i == last || is_last_of_unit(group, i))) {
                for (const std::uint32_t buffer : loaded_) list_.give_back(buffer);
                loaded_.clear();
            }
            run_step(group.steps[i], stage, micro_batch);
        }
        group_end_before_ = group_end_;
        group_end_ = last_step_;
    }
}

// Whole gradients that are scattered as soon as they are complete. While those of one step are on their way,
// those of the next are computed; a further step waits until the first have arrived, so that a slow network
// holds up the backward pass instead of filling the memory (FSDP2 waits for the reduce-scatter before, as
// DeepSpeed's overlap_comm does before it reuses a bucket).
void RankLowering::begin_gradients(const std::vector<std::int32_t>& buckets) {
    for (const std::int32_t bucket : buckets) {
        const ParameterBucket& b = result_.buckets[bucket];
        std::uint32_t& buffer = full_gradient_[bucket];
        buffer =
            list_.buffer(MemoryKind::gradients, b.padded_elements * core::size_of(plan_.precision.gradients));
        list_.take(buffer);
    }
    list_.wait_for(scatter_before_);
    scatter_before_ = last_scatter_;
}

void RankLowering::run_step(const Step& step, const LocalStage& stage, std::int32_t micro_batch) {
    if (step.kind == Step::Kind::reduce) {
        const bool has_reduction = reduce(*step.bucket, last_step_);
        if (has_reduction && !plan_.overlaps_gradient_reduction) pending_.push_back(last_on_data_);
        return;
    }
    if (step.kind == Step::Kind::unit) return begin_unit(stage, micro_batch, *step.unit);
    if (step.kind == Step::Kind::store) return store(stage, micro_batch, *step.unit);
    Instruction instruction;
    instruction.phase = step.phase;
    instruction.stage = stage.index;
    instruction.micro_batch = micro_batch;
    instruction.operators = step.operators;
    if (step.kind == Step::Kind::compute) {
        if (!step.begins.empty()) begin_gradients(step.begins);
        for (const std::uint32_t index : pending_) list_.wait_for(index);
        pending_.clear();
        before_last_compute_ = last_step_;
        last_step_ = list_.append(instruction);
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
        pending_.push_back(list_.append(instruction));
        return;
    }
    for (const std::uint32_t index : pending_) list_.wait_for(index);
    list_.wait_for(last_step_);
    last_step_ = list_.append(instruction);
    pending_.assign(1, last_step_);
}

}  // namespace schedule
