#include "exec/runtime/rank_executor.h"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/context_parallel.h"
#include "model/operators/rank_share.h"

namespace exec {

using model::OperatorKind;
using model::TensorId;
using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;
using schedule::MemoryKind;
using schedule::PayloadKind;
using schedule::Sharding;

namespace {

bool trains(const schedule::RankProgram& list) {
    return std::any_of(list.instructions.begin(), list.instructions.end(),
                       [](const Instruction& i) { return i.kind == InstructionKind::zero_gradients; });
}

}  // namespace

RankExecutor::RankExecutor(const schedule::Program& program, const model::SegmentGraphs& graphs,
                           const InputReader& inputs, const RunOptions& options, int rank, Backend& backend,
                           const std::vector<StagePlan>& stage_plans)
    : program_(program),
      graph_(graphs[0]),
      context_(program.plan.cost_context()),
      options_(options),
      rank_(rank),
      backend_(backend),
      pass_{&inputs, &stage_plans, options.sample_offset, true},
      list_(program.classes[program.class_of_rank[rank]]),
      coordinates_(schedule::coordinates_of(program.plan.layout, rank)),
      account_(std::make_shared<MemoryAccount>(fmt::format("rank {}", rank), backend.blocks())),
      host_(program.plan.updates_on_hosts()
                ? std::make_shared<MemoryAccount>(fmt::format("the host of rank {}", rank), backend.blocks())
                : nullptr),
      parameter_positions_(graph_.parameters.size()),
      bucket_of_(graph_.parameters.size()),
      micro_batches_(program.stages.size()),
      offload_(backend.make_offload_store(program.plan.offload, rank)) {
    buckets_.reserve(list_.buckets.size());
    for (const std::int32_t b : core::indices(list_.buckets)) {
        const schedule::ParameterBucket& bucket = list_.buckets[b];
        buckets_.emplace_back(graph_, program.plan, bucket, share(), piece_of(program.plan, bucket, rank),
                              options.seed, trains(list_), account_, host_, backend);
        for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
            const model::ParameterId parameter = bucket.parameters[i];
            parameter_positions_[parameter] = ParameterPosition{b, bucket.offsets[i]};
            bucket_of_[parameter] = b;
        }
    }
    releases_.resize(list_.instructions.size());
    if (program.plan.fetches_parameters())
        releases_ = releases_of(list_, graph_, bucket_of_, std::vector<char>(list_.instructions.size(), 1));
    for (const std::int32_t s : core::indices(program.stages))
        if (is_here(s)) micro_batches_[s].resize(program.micro_batches);
    for (const TensorId id : graph_.tensors.ids()) {
        const model::RankMatrix matrix = model::rank_matrix(graph_, id, context_);
        shapes_.push_back({matrix.rows, matrix.columns});
    }
    loss_weight_ = 1.0f / (program.micro_batches * program.plan.layout.data);
}

bool RankExecutor::is_here(std::int32_t stage) const {
    return stage >= 0 && stage < core::count_of(program_.stages) &&
           program_.stages[stage].rank == coordinates_.pipeline;
}

int RankExecutor::peer_rank(std::int32_t pipeline) const {
    return schedule::rank_of(program_.plan.layout, {coordinates_.data, coordinates_.tensor, pipeline});
}

std::size_t RankExecutor::bytes(TensorId id) const {
    return core::whole_bytes(model::tensor_bytes(graph_, id, context_));
}

core::DataType RankExecutor::type_of(TensorId id) const {
    return graph_.tensor(id).is_activation ? context_.compute : graph_.tensor(id).type;
}

void RankExecutor::step(std::int64_t step, std::vector<InstructionTime>& times) {
    step_ = step;
    has_checked_ = false;
    if (!backend_.begin_step(step)) {
        for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
            backend_.begin(i);
            perform(list_.instructions[i]);
            for (const std::int32_t bucket : releases_[i]) buckets_[bucket].release_parameters();
            backend_.end(i);
        }
        for (auto& stage : micro_batches_)
            for (MicroBatch& state : stage) state = MicroBatch{};
    }
    backend_.end_step(times);
    loss_.reset();
    for (std::int32_t stage = 0; stage < core::count_of(program_.stages); ++stage)
        if (program_.is_last_stage(stage) && is_here(stage)) loss_ = backend_.loss();
}

void RankExecutor::perform(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: compute(instruction); break;
        case InstructionKind::send: send(instruction); break;
        case InstructionKind::receive: receive(instruction); break;
        case InstructionKind::collective: collective(instruction); break;
        case InstructionKind::copy: copy(instruction); break;
        case InstructionKind::update_norm: {
            check_gradients();
            const TensorView sums = buckets_[*instruction.bucket].begin_update_sums();
            backend_.take_update_norms(program_.plan.optimizer, number_of_update(instruction),
                                       updates_of(instruction), sums);
            break;
        }
        case InstructionKind::optimizer_step: {
            check_gradients();
            BucketState* const one = !instruction.bucket ? nullptr : &buckets_[*instruction.bucket];
            schedule::Optimizer optimizer = program_.plan.optimizer;
            optimizer.learning_rate *= options_.learning_rate.factor(step_);
            backend_.update(optimizer, number_of_update(instruction), updates_of(instruction),
                            one ? one->update_sums() : TensorView());
            if (one) one->end_update_sums();
            break;
        }
        case InstructionKind::gradient_norm: {
            std::vector<UpdateRange> ranges;
            for (std::size_t b = 0; b < buckets_.size(); ++b) {
                const std::vector<std::int32_t>& tied = list_.buckets[b].tied_ranks;
                // Of ranks with equal parameters on the way that the sums take one counts them.
                const bool is_counted =
                    list_.buckets[b].is_expert ||
                    coordinates_.data % program_.plan.divides_gradients_by() < program_.plan.pieces(false);
                if (is_counted && (tied.empty() || tied.front() == coordinates_.pipeline))
                    buckets_[b].list_updates(program_.plan.optimizer, ranges);
            }
            for (const UpdateRange& range : ranges)
                if (coordinates_.tensor == 0 || graph_.parameter(range.id).split_dimension.has_value())
                    backend_.add_squares(range.gradient);
            break;
        }
        case InstructionKind::zero_gradients:
            for (BucketState& bucket : buckets_) bucket.zero_gradients();
            break;
    }
}

// Every reduction has ended before the first update, and before the norms that come before it.
void RankExecutor::check_gradients() {
    if (has_checked_ || !backend_.checks_gradients()) return;
    has_checked_ = true;
    std::vector<UpdateRange> ranges;
    for (BucketState& bucket : buckets_) bucket.list_updates(program_.plan.optimizer, ranges);
    backend_.check_gradients(ranges);
}

std::vector<UpdateRange> RankExecutor::updates_of(const Instruction& instruction) {
    std::vector<UpdateRange> ranges;
    for (const std::int32_t b : core::indices(buckets_))
        if (!instruction.bucket || *instruction.bucket == b)
            buckets_[b].list_updates(program_.plan.optimizer, ranges);
    for (UpdateRange& range : ranges)
        range.is_counted = coordinates_.tensor == 0 || graph_.parameter(range.id).split_dimension.has_value();
    return ranges;
}

RankExecutor::MicroBatch& RankExecutor::micro_batch(std::int32_t stage, std::int32_t index) {
    MicroBatch& state = micro_batches_[stage][index];
    if (!state.tensors.empty()) return state;
    state.tensors.resize(graph_.tensors.size());
    state.gradients.resize(graph_.tensors.size());
    state.saved_contexts.resize(plan_of(stage, index).operators.size());
    state.late_contexts.resize(state.saved_contexts.size());
    state.kept_gradients.resize(state.saved_contexts.size());
    if (program_.cuts_sequences()) {
        state.key_values.resize(state.saved_contexts.size());
        state.key_value_gradients.resize(state.saved_contexts.size());
    }
    state.position.segment = program_.segment_of(index);
    state.position.step = step_;
    state.position.micro_batch = index;
    state.position.is_training = pass_.is_training;
    state.loss_weight = 1.0f / (program_.micro_batches_of_update(index) * program_.plan.layout.data);
    if (const std::optional<LossScaling> scaling = backend_.loss_scaling())
        state.loss_weight *= scaling->scale;
    state.position.loss_weight = state.loss_weight;
    if (program_.micro_batches_per_update > 0)
        for (BucketState& bucket : buckets_) state.weights.push_back(bucket.version());
    const schedule::Plan& plan = program_.plan;
    for (int i = 0; i < plan.micro_batch; ++i)
        state.position.samples.push_back(
            pass_.sample_offset + global_sample(step_, coordinates_.data / plan.layout.context,
                                                plan.layout.replicas(), program_.whole_micro_batches(),
                                                plan.micro_batch, program_.whole_micro_batch_of(index), i));
    return state;
}

// Stages that follow one another on this rank hand their tensors over without a transfer.
void RankExecutor::take_over_activations(std::int32_t stage, std::int32_t index) {
    MicroBatch& state = micro_batch(stage, index);
    if (state.has_forward_input) return;
    state.has_forward_input = true;
    const core::OptionalIndex list = program_.stages[stage].receives;
    if (!list || !is_here(stage - 1)) return;
    MicroBatch& before = micro_batch(stage - 1, index);
    const StagePlan &from = plan_of(stage - 1, index), &to = plan_of(stage, index);
    for (const TensorId id : program_.tensor_lists[*list]) {
        const TensorId source = from.storage[id];
        state.tensors[to.storage[id]] = before.tensors[source];
        if (!from.is_saved[source]) before.tensors[source].reset();
    }
}

void RankExecutor::take_over_gradients(std::int32_t stage, std::int32_t index) {
    MicroBatch& state = micro_batch(stage, index);
    if (state.has_backward_input) return;
    state.has_backward_input = true;
    const core::OptionalIndex list = program_.stages[stage].sends;
    if (!list || !is_here(stage + 1)) return;
    MicroBatch& after = micro_batch(stage + 1, index);
    for (const TensorId id : program_.tensor_lists[*list]) {
        BufferPointer& source = after.gradients[plan_of(stage + 1, index).gradient_storage[id]];
        state.gradients[plan_of(stage, index).gradient_storage[id]] = std::move(source);
    }
}

BufferPointer& RankExecutor::tensor(MicroBatch& state, const StagePlan& plan, TensorId id) {
    const TensorId storage = plan.storage[id];
    BufferPointer& buffer = state.tensors[storage];
    if (!buffer) {
        const bool is_kept = plan.is_saved[storage] || plan.is_received[storage];
        const model::Operator& producer = graph_.op(graph_.tensor(storage).producer);
        buffer = make_buffer(account_,
                             is_kept                 ? MemoryKind::activations
                             : plan.is_sent[storage] ? MemoryKind::communication
                                                     : MemoryKind::workspace,
                             has_exchanged_experts(producer)
                                 ? activation_bytes(state.exchanges.at(dispatch_of(producer)).room)
                                 : bytes(storage));
    }
    return buffer;
}

BufferPointer& RankExecutor::gradient(MicroBatch& state, const StagePlan& plan, TensorId id) {
    const TensorId storage = plan.gradient_storage[id];
    BufferPointer& buffer = state.gradients[storage];
    if (!buffer && plan.is_overwritten[id]) {
        buffer = state.tensors[plan.storage[id]];
    } else if (!buffer) {
        // The gradient of routed tokens is first computed on the rank that received them.
        const model::OperatorId producer = graph_.tensor(storage).producer;
        const bool is_of_copies =
            context_.expert_parallel > 1 && graph_.op(producer).kind == OperatorKind::dispatch;
        buffer = make_buffer(
            account_, plan.is_received[storage] ? MemoryKind::communication : MemoryKind::workspace,
            is_of_copies ? activation_bytes(state.exchanges.at(producer.index).room) : bytes(storage));
        backend_.fill_zero(buffer->data(), buffer->bytes());
    }
    return buffer;
}

void RankExecutor::read_input(MicroBatch& state, const StagePlan& plan, TensorId id) {
    const TensorId storage = plan.storage[id];
    if (state.tensors[storage]) return;
    const std::size_t count = model::element_count(graph_.tensor(id).shape);
    const std::int32_t index = state.position.micro_batch;
    // May be called for later steps too: nothing of this step is captured.
    const auto write = [this, id, count, index](std::int64_t step, void* host) {
        const schedule::Plan& settings = program_.plan;
        const schedule::ParallelLayout& layout = settings.layout;
        const std::vector<std::int32_t> positions =
            layout.context > 1 ? places_of_tokens(count, layout.context, context_rank())
                               : std::vector<std::int32_t>();
        std::vector<std::int64_t> sequence(positions.empty() ? 0 : count);
        auto* ids = static_cast<std::int64_t*>(host);
        const std::size_t passes = program_.passes_per_micro_batch(), segment = program_.segment_of(index);
        for (int i = 0; i < settings.micro_batch; ++i) {
            const std::int64_t sample =
                pass_.sample_offset + global_sample(step, coordinates_.data / layout.context,
                                                    layout.replicas(), program_.whole_micro_batches(),
                                                    settings.micro_batch,
                                                    program_.whole_micro_batch_of(index), i);
            if (!positions.empty()) {  // models of one sequence of tokens: all their inputs are ids
                pass_.inputs->read(id, sample, std::span(sequence));
                for (const std::int32_t position : positions) *ids++ = sequence[position];
                continue;
            }
            const auto read_into = [&](auto* all) {
                using Element = std::remove_pointer_t<decltype(all)>;
                const std::span<Element> into(all + i * count, count);
                if (passes == 1) return pass_.inputs->read(id, sample, into);
                std::vector<Element> whole(count * passes);
                pass_.inputs->read(id, sample, std::span<Element>(whole));
                std::copy_n(whole.data() + segment * count, count, into.begin());
            };
            if (graph_.tensor(id).type == core::DataType::int64) read_into(static_cast<std::int64_t*>(host));
            else read_into(static_cast<float*>(host));
        }
    };
    backend_.read_data(
        *tensor(state, plan, id),
        graph_.tensor(id).type == core::DataType::int64 ? core::DataType::int64 : core::DataType::fp32,
        write);
}

Operands RankExecutor::operands(MicroBatch& state, std::int32_t stage, std::int32_t index) {
    const StagePlan& plan = plan_of(stage, state.position.micro_batch);
    const model::Operator& op = graph_.operators[index];
    Operands result;
    result.place = &state.position;
    for (const TensorId id : op.inputs) {
        // Stages read their own data: an input that an earlier stage declares is read here too.
        if (graph_.op(graph_.tensor(id).producer).kind == OperatorKind::input) read_input(state, plan, id);
        const BufferPointer& buffer = state.tensors[plan.storage[id]];
        result.inputs.push_back(view_of(state, op, id, buffer));
    }
    const BufferPointer& output = state.tensors[plan.storage[op.output]];
    result.output = view_of(state, op, op.output, output);
    const BufferPointer& saved_context = state.saved_contexts[index - plan.operators.begin];
    if (saved_context) result.saved_context = OpaqueView(saved_context->data());
    if (const BufferPointer& late = state.late_contexts[index - plan.operators.begin])
        result.late_context = OpaqueView(late->data());
    if (has_exchanged_experts(op)) result.expert_rows = &state.exchanges.at(dispatch_of(op)).rows;
    if (const auto keys = state.keys.find(index); keys != state.keys.end())
        result.keys = keys->second->view(context_.compute);
    if (const auto gradients = state.key_gradients.find(index); gradients != state.key_gradients.end())
        result.dkeys = gradients->second->view(context_.compute);
    return result;
}

ConstTensorView RankExecutor::parameter(const MicroBatch& state, model::ParameterId id) {
    const ParameterPosition& at = parameter_positions_[id].value();
    const TensorView whole = state.weights.empty()
                                 ? buckets_[at.bucket].whole_parameters()
                                 : (*state.weights[at.bucket])->view(program_.plan.precision.parameters);
    return whole.part(at.offset, model::parameter_elements(graph_, id, context_));
}

TensorView RankExecutor::parameter_gradient(model::ParameterId id) {
    const ParameterPosition& at = parameter_positions_[id].value();
    return buckets_[at.bucket].whole_gradient().part(at.offset,
                                                     model::parameter_elements(graph_, id, context_));
}

TensorShape RankExecutor::shape_of(const MicroBatch& state, const model::Operator& op, TensorId id) const {
    TensorShape shape = shapes_[id];
    if (has_exchanged_experts(op) && (id == op.inputs[0] || id == op.output)) {  // as many as were received
        const std::vector<std::int64_t>& rows = state.exchanges.at(dispatch_of(op)).rows;
        shape.rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    }
    return shape;
}

TensorView RankExecutor::view_of(const MicroBatch& state, const model::Operator& op, TensorId id,
                                 const BufferPointer& buffer) const {
    return buffer ? buffer->view(type_of(id), shape_of(state, op, id)) : TensorView();
}

void RankExecutor::compute(const Instruction& instruction) {
    MicroBatch& state = micro_batch(instruction.stage, instruction.micro_batch);
    if (instruction.phase == ComputePhase::forward || instruction.phase == ComputePhase::recompute) {
        take_over_activations(instruction.stage, instruction.micro_batch);
        if (passes_keys(instruction)) attend_piece(state, instruction);
        else if (instruction.pieces > 1) forward_piece(state, instruction);
        else forward(state, instruction);
    } else {
        take_over_gradients(instruction.stage, instruction.micro_batch);
        if (passes_keys(instruction)) attend_piece_backward(state, instruction);
        else if (instruction.pieces > 1) backward_piece(state, instruction);
        else backward(state, instruction);
    }
}

void RankExecutor::forward(MicroBatch& state, const Instruction& instruction) {
    const StagePlan& plan = plan_of(instruction.stage, instruction.micro_batch);
    const bool is_again = instruction.phase == ComputePhase::recompute;
    backend_.begin_operators(state.position.segment);
    for (std::int32_t i = instruction.operators.begin; i < instruction.operators.end; ++i) {
        const model::Operator& op = graph_.operators[i];
        const StagePlan::OperatorPlan& own = plan.plan_of(i);
        if (op.kind == OperatorKind::input) {
            if (!op.output.is_valid() || graph_.tensor(op.output).consumers.empty()) continue;
            read_input(state, plan, op.output);
            finish_forward(state, plan, i, is_again);
            continue;
        }
        make_saved_context(state, plan, i, is_again);
        make_late_context(state, plan, i, MemoryKind::workspace);
        tensor(state, plan, op.output);
        Operands x = operands(state, instruction.stage, i);
        for (const model::ParameterId id : op.parameters) x.parameters.push_back(parameter(state, id));
        if (op.kind == OperatorKind::attention && program_.cuts_sequences()) {
            add_earlier_keys(state, instruction.stage, i, false, x);
            if (own.is_recomputed && !is_again) keep_key_values(state, plan, i);
        }
        backend_.operators().forward(model::OperatorId(i), x, state.position);
        const model::Tensor& output = graph_.tensor(op.output);
        if (!is_again && output.consumers.empty() && !output.is_activation)
            backend_.add_loss(x.output, loss_weight_);
        if (!own.is_recomputed_alone || !is_again) state.keys.erase(i);
        finish_forward(state, plan, i, is_again);
        backend_.end_operator(i, model::Phase::forward);
    }
}

void RankExecutor::make_saved_context(MicroBatch& state, const StagePlan& plan, std::int32_t index,
                                      bool is_again) {
    const model::Operator& op = graph_.operators[index];
    const StagePlan::OperatorPlan& own = plan.plan_of(index);
    BufferPointer& saved_context = state.saved_contexts[index - plan.operators.begin];
    if (own.saved_context_bytes == 0 || saved_context) return;
    const bool is_dropped = own.drops_saved_context_after_forward && !is_again;
    saved_context = make_buffer(account_, is_dropped ? MemoryKind::workspace : MemoryKind::activations,
                                own_bytes(state, op, own.saved_context_bytes));
}

void RankExecutor::make_late_context(MicroBatch& state, const StagePlan& plan, std::int32_t index,
                                     MemoryKind kind) {
    const std::size_t planned = plan.plan_of(index).late_context_bytes;
    if (planned == 0) return;
    state.late_contexts[index - plan.operators.begin] =
        make_buffer(account_, kind, own_bytes(state, graph_.operators[index], planned));
}

// Of what experts keep, as many rows as were received instead of the number planned.
std::size_t RankExecutor::own_bytes(const MicroBatch& state, const model::Operator& op,
                                    std::size_t planned) const {
    if (!has_exchanged_experts(op)) return planned;
    const model::MixtureShape shape = model::mixture_shape(graph_, op, context_);
    const std::size_t received = state.exchanges.at(dispatch_of(op)).room / shape.hidden;
    return planned / shape.routed_tokens * received;
}

void RankExecutor::finish_forward(MicroBatch& state, const StagePlan& plan, std::int32_t op, bool is_again) {
    const StagePlan::OperatorPlan& own = plan.plan_of(op);
    if (!is_again && own.drops_saved_context_after_forward)
        state.saved_contexts[op - plan.operators.begin].reset();
    state.late_contexts[op - plan.operators.begin].reset();
    const std::vector<TensorId>& freed = is_again ? own.free_after_recompute : own.free_after_forward;
    for (const TensorId storage : freed) state.tensors[storage].reset();
}

void RankExecutor::backward(MicroBatch& state, const Instruction& instruction) {
    for (std::int32_t i = instruction.operators.end - 1; i >= instruction.operators.begin; --i)
        backward_operator(state, instruction.stage, i, instruction.phase);
    if (instruction.operators.begin == plan_of(instruction.stage, instruction.micro_batch).operators.begin)
        state.weights.clear();
}

void RankExecutor::backward_operator(MicroBatch& state, std::int32_t stage, std::int32_t index,
                                     ComputePhase phase) {
    const StagePlan& plan = plan_of(stage, state.position.micro_batch);
    const model::Operator& op = graph_.operators[index];
    const std::int32_t relative = index - plan.operators.begin;
    BufferPointer& dy = phase == ComputePhase::backward_weight
                            ? state.kept_gradients[relative]
                            : state.gradients[plan.gradient_storage[op.output]];
    const bool is_loss = op.kind == OperatorKind::cross_entropy;
    backend_.begin_operators(state.position.segment);
    if (op.kind != OperatorKind::input && (dy || (is_loss && phase != ComputePhase::backward_weight))) {
        if (state.keys.contains(index) && phase != ComputePhase::backward_weight) {
            BufferPointer& keys = state.key_gradients[index];
            keys = make_buffer(account_, MemoryKind::workspace, state.keys.at(index)->bytes());
            backend_.fill_zero(keys->data(), keys->bytes());
        }
        if (phase != ComputePhase::backward_weight)
            make_late_context(state, plan, index, MemoryKind::activations);
        Operands x = operands(state, stage, index);
        if (const TensorView own = exchanged_output(state, plan, index)) x.output = own;
        const TensorView gradient_of_output = is_loss
                                                  ? TensorView(&state.loss_weight, core::DataType::fp32, 1)
                                                  : view_of(state, op, op.output, dy);
        if (phase != ComputePhase::backward_weight || model::weight_gradients_read_parameters(op))
            for (const model::ParameterId id : op.parameters) x.parameters.push_back(parameter(state, id));
        if (phase != ComputePhase::backward_weight) {
            std::vector<TensorView> dx;
            const TensorId output_gradient = plan.gradient_storage[op.output];
            for (const TensorId id : op.inputs) {
                // A view's gradient is its input's already.
                const bool is_wanted = plan.has_gradient[id] && plan.gradient_storage[id] != output_gradient;
                dx.push_back(is_wanted ? view_of(state, op, id, gradient(state, plan, id)) : TensorView());
            }
            const bool reads_earlier = op.kind == OperatorKind::attention && program_.cuts_sequences();
            if (reads_earlier) add_earlier_keys(state, stage, index, true, x);
            backend_.operators().backward_input(model::OperatorId(index), x, gradient_of_output, dx,
                                                state.position);
            if (reads_earlier) {  // parts after this one are done, those before it have no use for its
                                  // keys
                state.key_values[relative].reset();
                state.key_value_gradients[relative].reset();
            }
            backend_.end_operator(index, model::Phase::backward_input);
        }
        if (phase != ComputePhase::backward_input && !op.parameters.empty()) {
            std::vector<TensorView> dparameters;
            for (const model::ParameterId id : op.parameters) dparameters.push_back(parameter_gradient(id));
            backend_.operators().backward_weight(model::OperatorId(index), x, gradient_of_output,
                                                 dparameters);
            backend_.end_operator(index, model::Phase::backward_weight);
        }
        if (phase == ComputePhase::backward_input && !op.parameters.empty())
            state.kept_gradients[relative] = dy;
    }
    state.keys.erase(index);
    finish_backward(state, plan, index, phase);
}

void RankExecutor::finish_backward(MicroBatch& state, const StagePlan& plan, std::int32_t index,
                                   ComputePhase phase) {
    const model::Operator& op = graph_.operators[index];
    const std::int32_t relative = index - plan.operators.begin;
    const StagePlan::OperatorPlan& own = plan.plan_of(index);
    if (phase != ComputePhase::backward_weight) {
        const TensorId output = plan.gradient_storage[op.output];
        const bool is_view = !op.inputs.empty() && plan.gradient_storage[op.inputs[0]] == output;
        if (!is_view) state.gradients[output].reset();
    } else {
        state.kept_gradients[relative].reset();
    }
    // What sequence parallelism gathered a second time has no use below its enter.
    if (model::gathers_tokens(op, context_)) state.tensors[op.output].reset();
    const bool waits_for_weight = phase == ComputePhase::backward_input && !op.parameters.empty();
    if (!waits_for_weight) {
        state.saved_contexts[relative].reset();
        state.late_contexts[relative].reset();
    }
    const std::vector<TensorId>& freed =
        phase == ComputePhase::backward_input ? own.free_after_input : own.free_after_backward;
    for (const TensorId storage : freed) state.tensors[storage].reset();
}

}  // namespace exec
