#include "exec/cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/low_precision.h"
#include "exec/cpu/rounded_operators.h"
#include "exec/transport/collective.h"
#include "exec/transport/exchange.h"
#include "schedule/collective/rounds.h"

namespace exec::cpu {

using schedule::CollectiveKind;
using schedule::Instruction;
using schedule::InstructionKind;

namespace {

// Time this thread had a core.
double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

// As the simulator counts members of a group that share a node.
int most_on_a_node(const std::vector<int>& members, int ranks_per_node) {
    if (ranks_per_node <= 0) return core::count_of(members);
    std::map<int, int> count;
    int most = 1;
    for (const int rank : members) most = std::max(most, ++count[rank / ranks_per_node]);
    return most;
}

core::Seconds between(Clock::time_point start, Clock::time_point end) {
    return core::Seconds(std::chrono::duration<double>(end - start).count());
}

// Each part of a sequence has its own: the place of the micro-batch says which.
class OperatorsBySegment : public OperatorKernels {
public:
    explicit OperatorsBySegment(std::vector<std::unique_ptr<const OperatorKernels>> by_segment)
        : by_segment_(std::move(by_segment)) {}
    void forward(model::OperatorId op, const Operands& operands,
                 const MicroBatchPosition& place) const override {
        of(place).forward(op, operands, place);
    }
    void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                        const std::vector<TensorView>& dx, const MicroBatchPosition& place) const override {
        of(place).backward_input(op, operands, dy, dx, place);
    }
    void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                         const std::vector<TensorView>& dparameters) const override {
        of(*operands.place).backward_weight(op, operands, dy, dparameters);
    }
    std::vector<std::int64_t> expert_rows(model::OperatorId dispatch,
                                          const Operands& operands) const override {
        return of(*operands.place).expert_rows(dispatch, operands);
    }
    void choices(model::OperatorId router, const Operands& operands, TensorView all) const override {
        of(*operands.place).choices(router, operands, all);
    }
    void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const override {
        by_segment_[0]->pack_keys(attention, packed, piece);
    }  // all are of one size

private:
    const OperatorKernels& of(const MicroBatchPosition& place) const { return *by_segment_[place.segment]; }
    std::vector<std::unique_ptr<const OperatorKernels>> by_segment_;
};

bool computes_low(const schedule::Precision& precision) { return is_low(precision.activations()); }

std::unique_ptr<const OperatorKernels> make_operators(const model::SegmentGraphs& graphs,
                                                      const schedule::Plan& plan,
                                                      const schedule::RankCoordinates& place,
                                                      std::uint64_t seed, bool is_training) {
    std::vector<std::unique_ptr<const OperatorKernels>> result;
    for (const model::ModelGraph& graph : graphs)
        if (computes_low(plan.precision))
            result.push_back(std::make_unique<RoundedOperators>(graph, plan.cost_context(), plan.precision,
                                                                place.tensor, seed, is_training,
                                                                place.data % plan.layout.context));
        else
            result.push_back(std::make_unique<Operators>(graph, plan.cost_context(), place.tensor, seed,
                                                         is_training, place.data % plan.layout.context));
    if (result.size() == 1) return std::move(result[0]);
    return std::make_unique<OperatorsBySegment>(std::move(result));
}

// Gradients in fp16 begin at 6e-8: those of its activations are scaled whatever the buckets keep.
bool scales_loss(const schedule::Program& program) {
    return program.plan.precision.activations() == core::DataType::fp16 && schedule::trains(program);
}

// The array in fp32: itself, or a copy that is rounded back when the view ends.
class WideView {
public:
    WideView(const TensorView& array, bool writes) : array_(array), writes_(writes) {
        if (!is_low(array.type())) return;
        copy_.resize(array.elements());
        widen_low(array.type(), array.elements(), array.as<std::uint16_t>(), copy_.data());
    }
    ~WideView() {
        if (writes_ && !copy_.empty())
            round_to_low(array_.type(), array_.elements(), copy_.data(), array_.as<std::uint16_t>());
    }
    WideView(const WideView&) = delete;
    WideView& operator=(const WideView&) = delete;
    float* data() { return copy_.empty() ? array_.floats() : copy_.data(); }

private:
    const TensorView array_;
    const bool writes_;
    std::vector<float> copy_;
};

// The elements in fp32: as they are stored, or in `copy`.
const float* widened(const ConstTensorView& array, std::vector<float>& copy) {
    if (!is_low(array.type())) return array.floats();
    copy.resize(array.elements());
    widen_low(array.type(), array.elements(), array.as<std::uint16_t>(), copy.data());
    return copy.data();
}

// Whole words: an array of an odd number of 16-bit values ends inside one, and so does its block.
std::span<float> words_of(Buffer& buffer) {
    return {buffer.span().data(), (buffer.bytes() + sizeof(float) - 1) / sizeof(float)};
}

}  // namespace

CpuBackend::CpuBackend(const schedule::Program& program, const model::SegmentGraphs& graphs,
                       const RunOptions& options, Communicator& communicator,
                       const std::vector<std::string>& activities)
    : program_(program),
      list_(program.classes[program.class_of_rank[communicator.rank()]]),
      options_(options),
      communicator_(communicator),
      activities_(activities),
      operators_(make_operators(graphs, program.plan,
                                schedule::coordinates_of(program.plan.layout, communicator.rank()),
                                options.seed, schedule::trains(program))),
      loss_scaling_(scales_loss(program) ? std::optional(LossScaling{}) : std::nullopt),
      side_(options.overlaps ? std::make_shared<SideStream>() : nullptr),
      blocks_(side_ ? std::shared_ptr<BlockSource>(std::make_shared<DeferredBlocks>(side_))
                    : std::make_shared<HostBlocks>()) {
    if (side_) find_needs(graphs[0]);
}

void CpuBackend::settle() {
    if (side_) side_->stop();
}

// An exchange in the side stream starts when the rank's own thread comes by it, so all before it in the list
// is done. The other way round an instruction waits for the exchanges in its `after` list and for those
// before it of the buckets that it reads or writes.
void CpuBackend::find_needs(const model::ModelGraph& graph) {
    needs_.resize(list_.instructions.size());
    numbers_.resize(list_.instructions.size());
    std::vector<std::int32_t> bucket_of(graph.parameters.size(), -1);
    for (const std::int32_t b : core::indices(list_.buckets))
        for (const model::ParameterId parameter : list_.buckets[b].parameters) bucket_of[parameter.index] = b;
    constexpr std::uint32_t none = ~std::uint32_t(0);
    std::vector<std::uint32_t> last_exchange(list_.buckets.size(), none);
    std::uint32_t last = none;
    for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
        const Instruction& instruction = list_.instructions[i];
        if (instruction.stream == schedule::Stream::data) {
            if (instruction.bucket) last_exchange[*instruction.bucket] = i;
            last = i;
            continue;
        }
        std::vector<std::uint32_t>& needs = needs_[i];
        for (const std::uint32_t before : list_.after(instruction))
            if (list_.instructions[before].stream == schedule::Stream::data) needs.push_back(before);
        if (instruction.kind == InstructionKind::compute) {
            for (std::int32_t op = instruction.operators.begin; op < instruction.operators.end; ++op)
                for (const model::ParameterId parameter : graph.operators[op].parameters) {
                    const std::int32_t bucket = bucket_of[parameter.index];
                    if (bucket >= 0 && last_exchange[bucket] != none) needs.push_back(last_exchange[bucket]);
                }
        } else if (instruction.kind != InstructionKind::send &&
                   instruction.kind != InstructionKind::receive &&
                   instruction.kind != InstructionKind::collective) {
            // The optimizer, norms of gradients and zeroing touch one bucket or all.
            if (!instruction.bucket && last != none) needs.push_back(last);
            if (instruction.bucket && last_exchange[*instruction.bucket] != none)
                needs.push_back(last_exchange[*instruction.bucket]);
        }
        std::sort(needs.begin(), needs.end());
        needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    }
}

bool CpuBackend::begin_evaluation(std::int64_t batch) {
    const bool is_performed = begin_step(batch);
    is_evaluating_ = true;
    return is_performed;
}

bool CpuBackend::begin_step(std::int64_t step) {
    step_ = step;
    is_evaluating_ = has_checked_ = is_bad_ = false;
    loss_ = squares_ = 0;
    times_.clear();
    times_.reserve(list_.instructions.size());  // the side stream writes into it
    return false;
}

void CpuBackend::begin(std::uint32_t instruction) {
    is_aside_ = side_ && list_.instructions[instruction].stream == schedule::Stream::data;
    times_.push_back({instruction, Clock::now(), {}, {}});
    if (is_aside_) {
        side_->add([this, instruction, &time = times_.back()] {
            communicator_.set_activity(&activities_[instruction]);
            time.start = Clock::now();
        });
        return;
    }
    communicator_.set_activity(&activities_[instruction]);
    if (side_) {
        for (const std::uint32_t before : needs_[instruction]) side_->wait_for(numbers_[before]);
        times_.back().start = Clock::now();
    }
    core_time_ = thread_seconds();
}

void CpuBackend::end(std::uint32_t instruction) {
    InstructionTime& time = times_.back();
    if (is_aside_) {
        numbers_[instruction] = side_->add([this, &time] {
            time.end = Clock::now();
            communicator_.set_activity(nullptr);
        });
        is_aside_ = false;
        return;
    }
    time.end = Clock::now();
    time.on_core = core::Seconds(thread_seconds() - core_time_);
    if (list_.instructions[instruction].kind != InstructionKind::compute) return;
    computing_ += between(time.start, time.end);
    on_core_ += time.on_core;
}

void CpuBackend::end_step(std::vector<InstructionTime>& times) {
    if (side_) side_->wait_for(side_->newest());
    if (loss_scaling_ && !is_evaluating_) {
        if (!has_checked_) check_gradients({});  // a stage without parameters
        loss_scaling_->end_step(!is_bad_);
    }
    times.insert(times.end(), times_.begin(), times_.end());
}

void CpuBackend::begin_operators(std::int32_t segment) {
    if (!options_.times_operators) return;
    operator_segment_ = segment;
    operator_begin_ = Clock::now();
    operator_core_time_ = thread_seconds();
}

void CpuBackend::end_operator(std::int32_t op, model::Phase phase) {
    if (!options_.times_operators) return;
    const Clock::time_point now = Clock::now();
    const double core_now = thread_seconds();
    operator_samples_.push_back({op, static_cast<std::int32_t>(step_), communicator_.rank(),
                                 operator_segment_, phase, between(operator_begin_, now),
                                 core::Seconds(core_now - operator_core_time_)});
    operator_begin_ = Clock::now();  // the thread's clock is a call into the system: not of the next operator
    operator_core_time_ = core_now;
}

void CpuBackend::fill_zero(void* data, std::size_t bytes) {
    in_stream([=] { std::memset(data, 0, bytes); });
}

void CpuBackend::copy(void* to, const void* from, std::size_t bytes) {
    in_stream([=] { std::memcpy(to, from, bytes); });
}

void CpuBackend::accumulate(ConstTensorView x, TensorView y) {
    in_stream([=] {
        std::vector<float> copy;
        WideView to(y, true);
        kernels().accumulate(x.elements(), widened(x, copy), to.data());
    });
}

void CpuBackend::read_data(Buffer& into, core::DataType,
                           std::function<void(std::int64_t step, void* host)> write) {
    write(step_, into.data());
}

void CpuBackend::upload(std::span<const float> values, TensorView to) {
    if (is_low(to.type())) round_to_low(to.type(), std::ssize(values), values.data(), to.as<std::uint16_t>());
    else std::memcpy(to.floats(), values.data(), values.size_bytes());
}

void CpuBackend::download(ConstTensorView from, std::span<float> values) {
    if (is_low(from.type()))
        widen_low(from.type(), std::ssize(values), from.as<std::uint16_t>(), values.data());
    else std::memcpy(values.data(), from.floats(), values.size_bytes());
}

namespace {

AdamStep adam_step(const schedule::Optimizer& optimizer, std::int64_t step) {
    AdamStep adam{};
    adam.learning_rate = static_cast<float>(optimizer.learning_rate);
    adam.beta1 = static_cast<float>(optimizer.beta1);
    adam.beta2 = static_cast<float>(optimizer.beta2);
    adam.rest1 = static_cast<float>(1.0 - optimizer.beta1);
    adam.rest2 = static_cast<float>(1.0 - optimizer.beta2);
    adam.epsilon = static_cast<float>(optimizer.epsilon);
    adam.correction1 = static_cast<float>(1.0 - std::pow(optimizer.beta1, static_cast<double>(step + 1)));
    adam.correction2 = static_cast<float>(1.0 - std::pow(optimizer.beta2, static_cast<double>(step + 1)));
    adam.is_decoupled = optimizer.kind == schedule::OptimizerKind::adamw;
    return adam;
}

}  // namespace

std::optional<double> CpuBackend::gradient_norm() const {
    if (program_.plan.optimizer.gradient_clipping <= 0) return std::nullopt;
    return std::sqrt(squares_) / loss_scale();
}

void CpuBackend::check_gradients(const std::vector<UpdateRange>& ranges) {
    if (side_) side_->wait_for(side_->newest());  // all gradients have come
    bool is_finite = true;
    std::vector<float> copy;
    for (const UpdateRange& range : ranges) {
        const float* values = widened(range.gradient, copy);
        for (std::int64_t i = 0; i < range.count; ++i) is_finite = is_finite && std::isfinite(values[i]);
    }
    // Numbers of barriers of their own.
    constexpr std::uint64_t first_check = std::uint64_t{1} << 41;
    is_bad_ = barrier(communicator_, first_check + step_, is_finite ? 0 : 1) != 0;
    has_checked_ = true;
}

// What gradients are multiplied by: 1 / scale, and float(limit / (norm + 1e-6)), at most 1. Every rank has
// the same sum and so the same factor.
float CpuBackend::gradient_factor(const schedule::Optimizer& optimizer) const {
    const double factor =
        optimizer.gradient_clipping > 0 ? optimizer.gradient_clipping / (*gradient_norm() + 1e-6) : 1.0;
    return (factor < 1 ? static_cast<float>(factor) : 1.0f) / loss_scale();
}

void CpuBackend::update(const schedule::Optimizer& optimizer, std::int64_t step,
                        const std::vector<UpdateRange>& ranges, ConstTensorView sums) {
    const Kernels& k = kernels();
    if (is_bad_) return;
    AdamStep adam = adam_step(optimizer, step - left_out());
    const float factor = gradient_factor(optimizer);
    for (const UpdateRange& range : ranges) {
        float *parameter = (range.master ? range.master : range.parameter).floats(),
              *first = range.first.floats(), *second = range.second.floats();
        adam.weight_decay = static_cast<float>(range.weight_decay);
        if (schedule::needs_update_norms(optimizer)) {
            const float values = sums.floats()[2 * range.place], updates = sums.floats()[2 * range.place + 1];
            const float ratio = values > 0 && updates > 0 ? std::sqrt(values) / std::sqrt(updates) : 1.0f;
            k.lamb(range.count, adam, adam.learning_rate * ratio, parameter, first, second);
        } else {
            WideView gradient(range.gradient, clips(factor));
            if (factor != 1) k.scale(range.count, factor, gradient.data(), gradient.data());
            if (optimizer.kind == schedule::OptimizerKind::sgd)
                k.sgd(range.count, adam.learning_rate, static_cast<float>(optimizer.momentum),
                      adam.weight_decay, gradient.data(), parameter, first);
            else k.adam(range.count, adam, gradient.data(), parameter, first, second);
        }
        if (range.master) upload({parameter, parameter + range.count}, range.parameter);
    }
}

void CpuBackend::take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                                   const std::vector<UpdateRange>& ranges, TensorView sums) {
    const Kernels& k = kernels();
    std::fill_n(sums.floats(), sums.elements(), 0.0f);
    if (is_bad_) return;
    AdamStep adam = adam_step(optimizer, step - left_out());
    const float factor = gradient_factor(optimizer);
    for (const UpdateRange& range : ranges) {
        WideView gradient(range.gradient, clips(factor));
        if (factor != 1) k.scale(range.count, factor, gradient.data(), gradient.data());
        adam.weight_decay = static_cast<float>(range.weight_decay);
        double squares[2] = {};
        k.lamb_norms(range.count, adam, gradient.data(),
                     (range.master ? range.master : range.parameter).floats(), range.first.floats(),
                     range.second.floats(), squares);
        if (!range.is_counted) continue;
        sums.floats()[2 * range.place] = static_cast<float>(squares[0]);
        sums.floats()[2 * range.place + 1] = static_cast<float>(squares[1]);
    }
}

// The message keeps the array until the receiver has read it.
void CpuBackend::send(int peer, Tag tag, const BufferPointer& data) {
    communicator_.start_send(peer, tag, words_of(*data), data);
}

void CpuBackend::receive(int peer, Tag tag, Buffer& into) {
    communicator_.receive(peer, tag, words_of(into), Arrival::overwrites);
}

void CpuBackend::collective(const Instruction& instruction, const std::vector<int>& members, TensorView data,
                            Tag tag) {
    in_stream([this, &instruction, members, data, tag] { perform_rounds(instruction, members, data, tag); });
}

// The rounds that the simulator prices.
void CpuBackend::perform_rounds(const Instruction& instruction, const std::vector<int>& members,
                                TensorView data, Tag tag) {
    WideView view(data, true);  // sums are fp32, rounded once
    const auto size = core::count_of(members);
    const int per_node = most_on_a_node(members, options_.ranks_per_node);
    const schedule::CollectiveAlgorithm& algorithm = schedule::select_collective(
        program_.plan.collective, instruction.collective, size, per_node, instruction.bytes);
    const schedule::Rounds rounds = algorithm.rounds(instruction.collective, size, per_node);
    if (instruction.collective == CollectiveKind::reduce_scatter ||
        instruction.collective == CollectiveKind::all_gather)
        for (int r = 0; r < size; ++r)
            core::require(rounds.owned_piece[r] == r,
                          "member i of a group owns piece i of what is scattered or gathered");
    exec::perform(communicator_, rounds, members, {view.data(), view.data() + data.elements()}, tag);
}

// Exact in fp32: far fewer than 2^24. One more is sent, so that zero is the silence of a peer that is not
// there: a profile runs ranks alone, and then as many copies come as stay.
Backend::RoutedTokenCounts CpuBackend::exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                                       const std::vector<int>& members, Tag tag) {
    RoutedTokenCounts counts;
    counts.own = operators_->expert_rows(dispatch, operands);
    const std::size_t experts = counts.own.size(), own = experts / members.size();
    std::vector<float> sent(counts.own.begin(), counts.own.end()), received(experts);
    for (float& count : sent) count += 1;
    const std::vector<std::size_t> parts(members.size(), own);
    exchange(members, {sent.data(), core::DataType::fp32, std::ssize(sent)}, parts,
             {received.data(), core::DataType::fp32, std::ssize(received)}, parts, tag);
    const std::size_t self =
        std::find(members.begin(), members.end(), communicator_.rank()) - members.begin();
    for (std::size_t e = 0; e < experts; ++e)
        counts.received.push_back(
            static_cast<std::int64_t>((received[e] > 0 ? received[e] : sent[self * own + e % own]) - 1));
    return counts;
}

// In round t members r and t - r exchange, as schedule/collective/ring.cpp lists them.
void CpuBackend::exchange(const std::vector<int>& members, ConstTensorView from,
                          const std::vector<std::size_t>& sent, TensorView to,
                          const std::vector<std::size_t>& received, Tag tag) {
    const std::size_t size = members.size();
    const std::size_t element = core::bytes_per_element(from.type());
    std::vector<std::size_t> first_sent(size + 1, 0), first_received(size + 1, 0);  // bytes
    for (std::size_t m = 0; m < size; ++m) {
        first_sent[m + 1] = first_sent[m] + sent[m] * element;
        first_received[m + 1] = first_received[m] + received[m] * element;
    }
    const std::size_t self =
        std::find(members.begin(), members.end(), communicator_.rank()) - members.begin();
    core::require(self < size && sent[self] == received[self], "a rank keeps its own part");
    const char* const source = from.octets();
    char* const target = to.octets();
    std::memcpy(target + first_received[self], source + first_sent[self], sent[self] * element);
    // Messages are whole words: 16-bit values that begin or end inside one travel in words of their own.
    const auto is_in_words = [](std::size_t first, std::size_t bytes) {
        return first % sizeof(float) == 0 && bytes % sizeof(float) == 0;
    };
    std::vector<float> sent_words, received_words;
    for (std::size_t t = 0; t < size; ++t) {
        const std::size_t partner = (t + size - self) % size;
        if (partner == self) continue;
        const std::size_t out = sent[partner] * element, in = received[partner] * element;
        const std::size_t out_words = (out + sizeof(float) - 1) / sizeof(float),
                          in_words = (in + sizeof(float) - 1) / sizeof(float);
        Communicator::Ticket ticket = 0;
        if (out > 0) {
            std::span<const float> words(reinterpret_cast<const float*>(source + first_sent[partner]),
                                         out_words);
            if (!is_in_words(first_sent[partner], out)) {
                sent_words.assign(out_words, 0.0f);
                std::memcpy(sent_words.data(), source + first_sent[partner], out);
                words = sent_words;
            }
            ticket = communicator_.start_send(members[partner], tag, words, nullptr);
        }
        if (in > 0 && is_in_words(first_received[partner], in)) {
            communicator_.receive(members[partner], tag,
                                  {reinterpret_cast<float*>(target + first_received[partner]), in_words},
                                  Arrival::overwrites);
        } else if (in > 0) {
            received_words.resize(in_words);
            communicator_.receive(members[partner], tag, received_words, Arrival::overwrites);
            std::memcpy(target + first_received[partner], received_words.data(), in);
        }
        if (out > 0) communicator_.finish(ticket);
    }
}

void CpuBackend::add_squares(ConstTensorView gradient) {
    std::vector<float> copy;
    const float* values = widened(gradient, copy);
    for (std::int64_t i = 0; i < gradient.elements(); ++i) {
        const double value = values[i];
        squares_ += value * value;
    }
}

void CpuBackend::reduce_squares(const Instruction& instruction, const std::vector<int>& members, Tag tag) {
    in_stream([this, &instruction, members, tag] {
        float value = squares_;
        perform_rounds(instruction, members, {&value, core::DataType::fp32, 1}, tag);
        squares_ = value;
    });
}

void CpuBackend::reduce_loss(const Instruction& instruction, const std::vector<int>& members, Tag tag) {
    in_stream([this, &instruction, members, tag] {
        float value = loss_;
        perform_rounds(instruction, members, {&value, core::DataType::fp32, 1}, tag);
        loss_ = value;
    });
}

}  // namespace exec::cpu
