// What a step's update is told and does: factors and keys from the host, norms and checks of gradients,
// scaled losses, the optimizer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/cuda/backend.h"
#include "exec/data.h"
#include "model/operators/cost.h"

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

bool CudaBackend::scales_loss() const { return program_.plan.precision.compute == core::DataType::fp16; }

float CudaBackend::initial_loss_scale() const { return scales_loss() ? first_loss_scale : 1.0f; }

void CudaBackend::fill_step_block(std::int64_t step) {
    const schedule::Optimizer& optimizer = program_.plan.optimizer;
    std::memset(step_block_, 0, step_block_bytes_);
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
        std::memcpy(step_block_ + update * sizeof factors, &factors, sizeof factors);
    }
    // A library's random numbers begin with the key of a micro-batch's first sample; ranks with other heads
    // of the same samples go on elsewhere: 2^40 scores further.
    auto* key = reinterpret_cast<std::uint64_t*>(step_block_ + keys_offset_);
    const schedule::Plan& plan = program_.plan;
    const int replica = schedule::coordinates_of(plan.layout, rank_).data / plan.layout.context;
    for (const std::int32_t op : dropping_)
        for (int k = 0; k < program_.whole_micro_batches(); ++k)
            for (int i = 0; i < plan.micro_batch; ++i)
                *key++ = mask_key(options_.seed, step, op,
                                  options_.sample_offset +
                                      global_sample(step, replica, plan.layout.replicas(),
                                                    program_.whole_micro_batches(), plan.micro_batch, k, i));
    *key = static_cast<std::uint64_t>(schedule::coordinates_of(plan.layout, rank_).tensor) << 40;
}

const StepFactors* CudaBackend::factors_of_update() const {
    return factors_ + std::max(0, instruction().micro_batch);
}

// The table of these ranges in device memory, filled the first time: addresses change neither from step to
// step nor between updates of one. Null when planning.
const CudaBackend::RangeTable* CudaBackend::table_of(TableUse use, const std::vector<UpdateRange>& ranges) {
    const TableKey key{instruction().bucket.value_or(-1), use};
    if (plans()) {
        learnt_.tables[key] = {ranges.size(), chunks_of(ranges)};
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
void CudaBackend::clear_gradient(const ConstTensorView& gradient) {
    clear_zeros(const_cast<void*>(gradient.data()), gradient.bytes());
}

void CudaBackend::add_squares(ConstTensorView gradient) {
    read(gradient.data());
    clear_gradient(gradient);
    UpdateRange range;
    range.gradient = {const_cast<void*>(gradient.data()), gradient.type(), gradient.shape()};
    range.count = gradient.elements();
    counted_.push_back(range);
}

// All that add_squares was given, at the end of its instruction: one launch.
void CudaBackend::count_squares() {
    write(norms_);
    if (const RangeTable* table = table_of(TableUse::norm, counted_))
        machine_.kernels().gradient_norm(stream(), type_of(program_.plan.precision.gradients), table->ranges,
                                         table->chunks, table->chunk_count, factors_, norm_partials_,
                                         squares());
    counted_.clear();
}

void CudaBackend::check_gradients(const std::vector<UpdateRange>& ranges) {
    for (const UpdateRange& range : ranges) {
        read(range.gradient.data());
        clear_gradient(range.gradient);
    }
    write(norms_);
    if (const RangeTable* table = table_of(TableUse::check, ranges))
        machine_.kernels().gradient_norm(stream(), type_of(program_.plan.precision.gradients), table->ranges,
                                         table->chunks, table->chunk_count, factors_, norm_partials_, norms_);
    agree_on_gradients();
}

void CudaBackend::take_update_norms(const schedule::Optimizer& optimizer, std::int64_t,
                                    const std::vector<UpdateRange>& ranges, TensorView sums) {
    for (const UpdateRange& range : ranges) {
        clear_gradient(range.gradient);
        if (optimizer.gradient_clipping > 0) write(range.gradient.data());
        else read(range.gradient.data());
        read((range.master ? range.master : range.parameter).data());
        for (const TensorView& changed : {range.first, range.second}) write(changed.data());
    }
    write(sums.data());
    if (scales_loss() || optimizer.gradient_clipping > 0) read(norms_);
    const RangeTable* table = table_of(TableUse::update_norm, ranges);
    if (!table) return;
    machine_.fill_zero(stream(), sums.data(), sums.bytes());  // of parameters that this rank has nothing of
    const schedule::Precision& precision = program_.plan.precision;
    machine_.kernels().update_norms(stream(), type_of(precision.parameters), type_of(precision.gradients),
                                    table->ranges, std::ssize(ranges), table->chunks, table->chunk_count,
                                    factors_of_update(), scales_loss() ? bad() : nullptr,
                                    optimizer.gradient_clipping > 0 ? squares() : nullptr, norm_partials_,
                                    sums.floats());
}

void CudaBackend::update(const schedule::Optimizer& optimizer, std::int64_t,
                         const std::vector<UpdateRange>& ranges, ConstTensorView sums) {
    const schedule::Precision& precision = program_.plan.precision;
    if (schedule::needs_update_norms(optimizer)) {
        read(sums.data());
        for (const UpdateRange& range : ranges) {
            for (const TensorView& moment : {range.first, range.second}) read(moment.data());
            for (const TensorView& changed : {range.parameter, range.master}) write(changed.data());
        }
        if (scales_loss()) read(norms_);
        if (const RangeTable* table = table_of(TableUse::update, ranges))
            machine_.kernels().lamb(stream(), type_of(precision.parameters), table->ranges, table->chunks,
                                    table->chunk_count, factors_of_update(), scales_loss() ? bad() : nullptr,
                                    sums.floats());
        return;
    }
    for (const UpdateRange& range : ranges) {
        clear_gradient(range.gradient);
        if (optimizer.gradient_clipping > 0) write(range.gradient.data());
        else read(range.gradient.data());
        for (const TensorView& changed : {range.parameter, range.master, range.first, range.second})
            write(changed.data());
    }
    if (scales_loss() || optimizer.gradient_clipping > 0) read(norms_);
    const RangeTable* table = table_of(TableUse::update, ranges);
    if (!table) return;
    machine_.kernels().update(
        stream(), optimizer.kind == schedule::OptimizerKind::sgd ? UpdateRule::sgd : UpdateRule::adam,
        type_of(precision.parameters), type_of(precision.gradients), table->ranges, table->chunks,
        table->chunk_count, factors_of_update(), scales_loss() ? bad() : nullptr,
        optimizer.gradient_clipping > 0 ? squares() : nullptr);
}

void CudaBackend::adapt_loss_scale() {
    if (!scales_loss()) return;
    if (norms_host_[1] != 0.0f) {
        good_steps_ = 0;
        ++updates_left_out_;
        loss_scale_ = std::max(1.0f, loss_scale_ / 2);
    } else if (++good_steps_ % steps_to_double == 0) {
        loss_scale_ *= 2;
    }
}

void CudaBackend::add_loss(ConstTensorView loss, float weight) {
    read(loss.data());
    write(loss_sum_);
    machine_.kernels().add_loss(stream(), loss.floats(), weight, loss_sum_);
}

}  // namespace exec::cuda
