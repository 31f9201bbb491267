#include "exec/cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/collective.h"
#include "exec/cpu/bfloat16.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/rounded_operators.h"
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
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

core::Seconds between(Clock::time_point start, Clock::time_point end) { return core::Seconds(std::chrono::duration<double>(end - start).count()); }

std::unique_ptr<const OperatorKernels> make_operators(const model::ModelGraph& graph, const schedule::Plan& plan, int tensor_rank, std::uint64_t seed) {
    if (plan.precision.compute == core::DataType::bf16)
        return std::make_unique<RoundedOperators>(graph, plan.cost_context(), plan.precision, tensor_rank, seed);
    return std::make_unique<Operators>(graph, plan.cost_context(), tensor_rank, seed);
}

std::uint16_t* bfloats(void* array) { return static_cast<std::uint16_t*>(array); }
const std::uint16_t* bfloats(const void* array) { return static_cast<const std::uint16_t*>(array); }

// The array in fp32: itself, or a copy that is rounded back when the view ends.
class WideView {
public:
    WideView(core::DataType type, float* array, std::int64_t count, bool writes) : array_(array), count_(count), writes_(writes) {
        if (type != core::DataType::bf16) return;
        copy_.resize(static_cast<std::size_t>(count));
        widen_bfloat16(count, bfloats(array), copy_.data());
    }
    ~WideView() {
        if (writes_ && !copy_.empty()) round_to_bfloat16(count_, copy_.data(), bfloats(array_));
    }
    WideView(const WideView&) = delete;
    WideView& operator=(const WideView&) = delete;
    float* data() { return copy_.empty() ? array_ : copy_.data(); }

private:
    float* array_;
    std::int64_t count_;
    bool writes_;
    std::vector<float> copy_;
};

// Whole words: an array of an odd number of bf16 values ends inside one, and so does its block.
std::span<float> words_of(Buffer& buffer) { return {buffer.data(), (buffer.bytes() + sizeof(float) - 1) / sizeof(float)}; }

}  // namespace

std::string CpuBackend::obstacle(const schedule::Precision& precision) {
    const auto is_known = [](core::DataType type) { return type == core::DataType::fp32 || type == core::DataType::bf16; };
    for (const core::DataType type : {precision.compute, precision.parameters, precision.gradients})
        if (!is_known(type)) return fmt::format("the CPU backend computes in fp32 and bf16, the plan in {}", core::name_of(type));
    const bool is_low = precision.parameters == core::DataType::bf16;
    if (is_low != (precision.compute == core::DataType::bf16)) return "the CPU backend reads parameters in the format that it computes in";
    if (is_low && !precision.has_master_parameters) return "the CPU backend trains bf16 parameters with an fp32 copy only";
    if (!is_low && precision.has_master_parameters) return "the CPU backend keeps no second copy of fp32 parameters";
    if (!is_low && precision.gradients != core::DataType::fp32) return "the CPU backend keeps gradients of fp32 parameters in fp32";
    return {};
}

CpuBackend::CpuBackend(const schedule::Program& program, const model::ModelGraph& graph, const RunOptions& options, Communicator& communicator,
                       const std::vector<std::string>& activities)
    : program_(program),
      list_(program.classes[static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(communicator.rank())])]),
      options_(options),
      communicator_(communicator),
      activities_(activities),
      operators_(make_operators(graph, program.plan, schedule::coordinates_of(program.plan.layout, communicator.rank()).tensor, options.seed)),
      blocks_(std::make_shared<HostBlocks>()) {}

bool CpuBackend::begin_step(std::int64_t step) {
    step_ = step;
    loss_ = squares_ = 0;
    times_.clear();
    return false;
}

void CpuBackend::begin(std::uint32_t instruction) {
    communicator_.set_activity(&activities_[instruction]);
    if (list_.instructions[instruction].kind == InstructionKind::compute) core_time_ = thread_seconds();
    times_.push_back({instruction, Clock::now(), {}});
}

void CpuBackend::end(std::uint32_t instruction) {
    InstructionTime& time = times_.back();
    time.end = Clock::now();
    if (list_.instructions[instruction].kind != InstructionKind::compute) return;
    computing_ += between(time.start, time.end);
    on_core_ += core::Seconds(thread_seconds() - core_time_);
}

void CpuBackend::end_step(std::vector<InstructionTime>& times) { times.insert(times.end(), times_.begin(), times_.end()); }

void CpuBackend::begin_operators() {
    if (options_.times_operators) operator_begin_ = Clock::now();
}

void CpuBackend::end_operator(std::int32_t op, model::Phase phase) {
    if (!options_.times_operators) return;
    const Clock::time_point now = Clock::now();
    operator_samples_.push_back({op, static_cast<std::int32_t>(step_), communicator_.rank(), phase, between(operator_begin_, now)});
    operator_begin_ = now;
}

void CpuBackend::fill_zero(void* data, std::size_t bytes) { std::memset(data, 0, bytes); }

void CpuBackend::copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

void CpuBackend::accumulate(core::DataType type, std::int64_t count, const void* x, void* y) {
    WideView from(type, static_cast<float*>(const_cast<void*>(x)), count, false), to(type, static_cast<float*>(y), count, true);
    kernels().accumulate(count, from.data(), to.data());
}

void CpuBackend::read_data(Buffer& into, std::function<void(std::int64_t step, void* host)> write) { write(step_, into.data()); }

void CpuBackend::upload(core::DataType type, std::span<const float> values, void* to) {
    if (type == core::DataType::bf16) round_to_bfloat16(static_cast<std::int64_t>(values.size()), values.data(), bfloats(to));
    else std::memcpy(to, values.data(), values.size_bytes());
}

void CpuBackend::download(core::DataType type, const void* from, std::span<float> values) {
    if (type == core::DataType::bf16) widen_bfloat16(static_cast<std::int64_t>(values.size()), bfloats(from), values.data());
    else std::memcpy(values.data(), from, values.size_bytes());
}

void CpuBackend::update(const schedule::Optimizer& optimizer, std::int64_t step, const std::vector<UpdateRange>& ranges) {
    const Kernels& k = kernels();
    AdamStep adam{};
    adam.learning_rate = static_cast<float>(optimizer.learning_rate);
    adam.beta1 = static_cast<float>(optimizer.beta1);
    adam.beta2 = static_cast<float>(optimizer.beta2);
    adam.epsilon = static_cast<float>(optimizer.epsilon);
    adam.correction1 = static_cast<float>(1.0 - std::pow(optimizer.beta1, static_cast<double>(step + 1)));
    adam.correction2 = static_cast<float>(1.0 - std::pow(optimizer.beta2, static_cast<double>(step + 1)));
    adam.is_decoupled = optimizer.kind == schedule::OptimizerKind::adamw;
    // float(limit / (norm + 1e-6)): every rank has the same sum and so the same factor.
    const double factor = optimizer.gradient_clipping > 0 ? optimizer.gradient_clipping / (std::sqrt(squares_) + 1e-6) : 1.0;
    const schedule::Precision& precision = program_.plan.precision;
    for (const UpdateRange& range : ranges) {
        WideView gradient(precision.gradients, range.gradient, range.count, factor < 1);
        if (factor < 1) k.scale(range.count, static_cast<float>(factor), gradient.data(), gradient.data());
        float* parameter = range.master ? range.master : range.parameter;
        adam.weight_decay = static_cast<float>(range.weight_decay);
        if (optimizer.kind == schedule::OptimizerKind::sgd)
            k.sgd(range.count, adam.learning_rate, static_cast<float>(optimizer.momentum), adam.weight_decay, gradient.data(), parameter, range.first);
        else k.adam(range.count, adam, gradient.data(), parameter, range.first, range.second);
        if (range.master) upload(precision.parameters, {range.master, static_cast<std::size_t>(range.count)}, range.parameter);
    }
}

// The message keeps the array until the receiver has read it.
void CpuBackend::send(int peer, Tag tag, const BufferPointer& data) { communicator_.start_send(peer, tag, words_of(*data), data); }

void CpuBackend::receive(int peer, Tag tag, Buffer& into) { communicator_.receive(peer, tag, words_of(into), Arrival::overwrites); }

void CpuBackend::collective(const Instruction& instruction, const std::vector<int>& members, core::DataType type, float* data, std::size_t count, Tag tag) {
    WideView view(type, data, static_cast<std::int64_t>(count), true);  // sums are fp32, rounded once
    const auto size = static_cast<int>(members.size());
    const int per_node = options_.ranks_per_node > 0 ? options_.ranks_per_node : program_.plan.layout.ranks();
    const schedule::CollectiveAlgorithm& algorithm =
        schedule::select_collective(program_.plan.collective, instruction.collective, size, per_node, instruction.bytes);
    const schedule::Rounds rounds = algorithm.rounds(instruction.collective, size, per_node);
    if (instruction.collective == CollectiveKind::reduce_scatter || instruction.collective == CollectiveKind::all_gather)
        for (int r = 0; r < size; ++r)
            core::require(rounds.owned_piece[static_cast<std::size_t>(r)] == r, "member i of a group owns piece i of what is scattered or gathered");
    exec::perform(communicator_, rounds, members, {view.data(), count}, tag);
}

void CpuBackend::add_squares(core::DataType type, const float* gradient, std::int64_t count) {
    WideView view(type, const_cast<float*>(gradient), count, false);
    for (std::int64_t i = 0; i < count; ++i) squares_ += static_cast<double>(view.data()[i]) * static_cast<double>(view.data()[i]);
}

void CpuBackend::reduce_squares(const Instruction& instruction, const std::vector<int>& members, Tag tag) {
    auto value = static_cast<float>(squares_);
    collective(instruction, members, core::DataType::fp32, &value, 1, tag);
    squares_ = static_cast<double>(value);
}

void CpuBackend::reduce_loss(const Instruction& instruction, const std::vector<int>& members, Tag tag) {
    auto value = static_cast<float>(loss_);
    collective(instruction, members, core::DataType::fp32, &value, 1, tag);
    loss_ = static_cast<double>(value);
}

}  // namespace exec::cpu
