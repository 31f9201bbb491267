#include "exec/cuda/backend/device_updates.h"

#include <algorithm>
#include <cmath>

#include "core/errors.h"
#include "core/index/integers.h"

namespace exec::cuda {

namespace {

// Micikevicius et al., arXiv 1710.03740, with the constants of torch.amp.GradScaler: 2^16 to begin with,
// twice as much after 2,000 good steps, half after a bad one.
constexpr float first_loss_scale = 65536.0f;
constexpr int steps_to_double = 2000;

std::int64_t chunks_of(const std::vector<UpdateRange>& ranges) {
    std::int64_t chunks = 0;
    for (const UpdateRange& range : ranges) chunks += (range.count + update_chunk - 1) / update_chunk;
    return chunks;
}

}  // namespace

DeviceUpdates::DeviceUpdates(const schedule::Program& program, Machine& machine, DeviceExchange& exchange,
                             WorkContext& work)
    : program_(program),
      machine_(machine),
      exchange_(exchange),
      work_(work),
      loss_scale_(scales_loss(program.plan) ? first_loss_scale : 1.0f) {}

void DeviceUpdates::take_tables(std::map<TableKey, RangeTable> tables, float* partials) {
    tables_ = std::move(tables);
    partials_ = partials;
}

std::vector<StepFactors> DeviceUpdates::factors(std::int64_t step) const {
    const schedule::Optimizer& optimizer = program_.plan.optimizer;
    std::vector<StepFactors> result;
    StepFactors factors{};
    factors.learning_rate = static_cast<float>(optimizer.learning_rate);
    factors.beta1 = static_cast<float>(optimizer.beta1);
    factors.beta2 = static_cast<float>(optimizer.beta2);
    factors.rest1 = static_cast<float>(1.0 - optimizer.beta1);
    factors.rest2 = static_cast<float>(1.0 - optimizer.beta2);
    factors.epsilon = static_cast<float>(optimizer.epsilon);
    factors.momentum = static_cast<float>(optimizer.momentum);
    factors.loss_scale = loss_scale_;
    factors.largest_norm = static_cast<float>(optimizer.gradient_clipping);
    factors.is_decoupled = optimizer.kind == schedule::OptimizerKind::adamw ? 1.0f : 0.0f;
    const double rate = schedule::needs_update_norms(optimizer) ? 1.0 : optimizer.learning_rate;
    for (int update = 0; update < program_.updates(); ++update) {  // of an asynchronous step: several
        // In double: 1 - beta2^t loses half of its digits in float when t is small.
        const auto updates = static_cast<double>(step * program_.updates() + update + 1 - updates_left_out_);
        factors.step_size = static_cast<float>(rate / (1.0 - std::pow(optimizer.beta1, updates)));
        factors.second_correction =
            static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(optimizer.beta2, updates)));
        result.push_back(factors);
    }
    return result;
}

void DeviceUpdates::begin_step(Stream stream) {
    has_agreed_ = false;
    machine_.fill_zero(stream, loss_sum_, sizeof(float));
    machine_.fill_zero(stream, norms_, norm_count * sizeof(float));
}

void DeviceUpdates::end_instruction() {
    if (!counted_.empty()) count_squares();
}

void DeviceUpdates::end_step() {
    if (schedule::trains(program_) && !has_agreed_) agree_on_gradients();  // a stage without parameters
}

void DeviceUpdates::download(Stream stream) {
    machine_.download(stream, host_, loss_sum_, sizeof(float));
    machine_.download(stream, host_ + 1, norms_, norm_count * sizeof(float));
}

void DeviceUpdates::finish() {
    loss_ = host_[0];
    adapt_loss_scale();
}

const StepFactors* DeviceUpdates::factors_of_update() const {
    return work_.factors() + std::max(0, work_.instruction().micro_batch);
}

// The table of these ranges in device memory, filled the first time: addresses change neither from step to
// step nor between updates of one. Null when planning.
const DeviceUpdates::RangeTable* DeviceUpdates::table_of(TableUse use,
                                                         const std::vector<UpdateRange>& ranges) {
    const TableKey key{work_.instruction().bucket.value_or(-1), use};
    if (work_.plans()) {
        learnt_[key] = {ranges.size(), chunks_of(ranges)};
        return nullptr;
    }
    RangeTable& table = tables_.at(key);
    if (!table.is_filled) {
        std::vector<DeviceRange> device;
        std::vector<UpdateChunk> chunks;
        for (const std::int32_t i : core::indices(ranges)) {
            const UpdateRange& r = ranges[i];
            device.push_back({r.parameter.data(), r.gradient.data(), r.master.floats(), r.first.floats(),
                              r.second.floats(), r.count, static_cast<float>(r.weight_decay), r.place,
                              r.is_counted ? 1 : 0, std::ssize(chunks)});
            for (std::int64_t begin = 0; begin < r.count; begin += update_chunk) chunks.push_back({i, begin});
        }
        core::require(std::ssize(chunks) == table.chunk_count, "every step updates the same ranges");
        machine_.upload_now(table.ranges, device.data(), device.size() * sizeof(DeviceRange));
        machine_.upload_now(table.chunks, chunks.data(), chunks.size() * sizeof(UpdateChunk));
        table.is_filled = true;
    }
    return &table;
}

// What no operator contributed to.
void DeviceUpdates::clear_gradient(const ConstTensorView& gradient) {
    work_.clear_zeros(const_cast<void*>(gradient.data()), gradient.bytes());
}

void DeviceUpdates::add_squares(ConstTensorView gradient) {
    work_.reads(gradient.data());
    clear_gradient(gradient);
    UpdateRange range;
    range.gradient = {const_cast<void*>(gradient.data()), gradient.type(), gradient.shape()};
    range.count = gradient.elements();
    counted_.push_back(range);
}

// All that add_squares was given, at the end of its instruction: one launch.
void DeviceUpdates::count_squares() {
    work_.writes(norms_);
    if (const RangeTable* table = table_of(TableUse::norm, counted_))
        machine_.kernels().gradient_norm(work_.stream(), type_of(program_.plan.precision.gradients),
                                         table->ranges, table->chunks, table->chunk_count, work_.factors(),
                                         partials_, squares());
    counted_.clear();
}

void DeviceUpdates::check_gradients(const std::vector<UpdateRange>& ranges) {
    for (const UpdateRange& range : ranges) {
        work_.reads(range.gradient.data());
        clear_gradient(range.gradient);
    }
    work_.writes(norms_);
    if (const RangeTable* table = table_of(TableUse::check, ranges))
        machine_.kernels().gradient_norm(work_.stream(), type_of(program_.plan.precision.gradients),
                                         table->ranges, table->chunks, table->chunk_count, work_.factors(),
                                         partials_, norms_);
    agree_on_gradients();
}

void DeviceUpdates::take_update_norms(const schedule::Optimizer& optimizer, std::int64_t,
                                      const std::vector<UpdateRange>& ranges, TensorView sums) {
    for (const UpdateRange& range : ranges) {
        clear_gradient(range.gradient);
        if (optimizer.gradient_clipping > 0) work_.writes(range.gradient.data());
        else work_.reads(range.gradient.data());
        work_.reads((range.master ? range.master : range.parameter).data());
        for (const TensorView& changed : {range.first, range.second}) work_.writes(changed.data());
    }
    work_.writes(sums.data());
    if (checks_gradients() || optimizer.gradient_clipping > 0) work_.reads(norms_);
    const RangeTable* table = table_of(TableUse::update_norm, ranges);
    if (!table) return;
    machine_.fill_zero(work_.stream(), sums.data(),
                       sums.bytes());  // of parameters that this rank has nothing of
    const schedule::Precision& precision = program_.plan.precision;
    machine_.kernels().update_norms(
        work_.stream(), type_of(precision.parameters), type_of(precision.gradients), table->ranges,
        std::ssize(ranges), table->chunks, table->chunk_count, factors_of_update(),
        checks_gradients() ? bad() : nullptr, optimizer.gradient_clipping > 0 ? squares() : nullptr,
        partials_, sums.floats());
}

void DeviceUpdates::update(const schedule::Optimizer& optimizer, std::int64_t,
                           const std::vector<UpdateRange>& ranges, ConstTensorView sums) {
    const schedule::Precision& precision = program_.plan.precision;
    if (schedule::needs_update_norms(optimizer)) {
        work_.reads(sums.data());
        for (const UpdateRange& range : ranges) {
            for (const TensorView& moment : {range.first, range.second}) work_.reads(moment.data());
            for (const TensorView& changed : {range.parameter, range.master}) work_.writes(changed.data());
        }
        if (checks_gradients()) work_.reads(norms_);
        if (const RangeTable* table = table_of(TableUse::update, ranges))
            machine_.kernels().lamb(work_.stream(), type_of(precision.parameters), table->ranges,
                                    table->chunks, table->chunk_count, factors_of_update(),
                                    checks_gradients() ? bad() : nullptr, sums.floats());
        return;
    }
    for (const UpdateRange& range : ranges) {
        clear_gradient(range.gradient);
        if (optimizer.gradient_clipping > 0) work_.writes(range.gradient.data());
        else work_.reads(range.gradient.data());
        for (const TensorView& changed : {range.parameter, range.master, range.first, range.second})
            work_.writes(changed.data());
    }
    if (checks_gradients() || optimizer.gradient_clipping > 0) work_.reads(norms_);
    const RangeTable* table = table_of(TableUse::update, ranges);
    if (!table) return;
    machine_.kernels().update(
        work_.stream(), optimizer.kind == schedule::OptimizerKind::sgd ? UpdateRule::sgd : UpdateRule::adam,
        type_of(precision.parameters), type_of(precision.gradients), table->ranges, table->chunks,
        table->chunk_count, factors_of_update(), checks_gradients() ? bad() : nullptr,
        optimizer.gradient_clipping > 0 ? squares() : nullptr);
}

void DeviceUpdates::adapt_loss_scale() {
    if (!checks_gradients()) return;
    if (host_[2] != 0.0f) {
        good_steps_ = 0;
        ++updates_left_out_;
        loss_scale_ = std::max(1.0f, loss_scale_ / 2);
    } else if (++good_steps_ % steps_to_double == 0) {
        loss_scale_ *= 2;
    }
}

void DeviceUpdates::add_loss(ConstTensorView loss, float weight) {
    work_.reads(loss.data());
    work_.writes(loss_sum_);
    machine_.kernels().add_loss(work_.stream(), loss.floats(), weight, loss_sum_);
}

void DeviceUpdates::reduce_loss(const schedule::Instruction&, const std::vector<int>& members, Tag) {
    work_.writes(loss_sum_);
    exchange_.add_up(loss_sum_, members);
}

void DeviceUpdates::reduce_squares(const schedule::Instruction&, const std::vector<int>& members, Tag) {
    work_.writes(norms_);
    exchange_.add_up(squares(), members);
}

// Whether a gradient of any rank is no number.
void DeviceUpdates::agree_on_gradients() {
    has_agreed_ = true;
    exchange_.agree(bad());
}

}  // namespace exec::cuda
