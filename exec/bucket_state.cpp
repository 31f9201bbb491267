#include "exec/bucket_state.h"

#include <cmath>
#include <cstring>

#include "core/diagnostics.h"
#include "exec/cpu/kernels.h"
#include "exec/parameters.h"

namespace exec {

using schedule::MemoryKind;
using schedule::Sharding;

BucketState::BucketState(const model::ModelGraph& graph, const schedule::Plan& plan, const schedule::ParameterBucket& bucket, int tensor_rank, int piece,
                         std::uint64_t seed, bool trains, std::shared_ptr<MemoryAccount> account)
    : graph_(graph), plan_(plan), bucket_(bucket), account_(std::move(account)), piece_(piece), padded_(static_cast<std::size_t>(bucket.padded_elements)) {
    piece_size_ = shards(Sharding::optimizer) ? padded_ / static_cast<std::size_t>(plan.effective_shard_degree()) : padded_;

    BufferPointer whole = array(MemoryKind::parameters, padded_);
    whole->fill_zero();
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const model::Parameter& parameter = graph.parameter(bucket.parameters[i]);
        for (const ElementRun& run : element_runs(parameter, plan.layout.tensor, tensor_rank))
            initialize(parameter, seed, run.global, run.count, whole->data() + bucket.offsets[i] + run.local);
    }
    if (shards(Sharding::parameters)) {
        piece_parameters_ = array(MemoryKind::parameters, piece_size_);
        std::memcpy(piece_parameters_->data(), whole->data() + piece_begin(), piece_size_ * sizeof(float));
    } else {
        whole_parameters_ = std::move(whole);
    }
    if (!trains) return;
    if (shards(Sharding::gradients)) piece_gradient_ = array(MemoryKind::gradients, piece_size_);
    else whole_gradient_ = array(MemoryKind::gradients, padded_);
    const auto states = static_cast<int>(schedule::state_bytes_per_parameter(plan.optimizer).value / 4);
    if (states > 0) first_state_ = array(MemoryKind::optimizer, piece_size_);
    if (states > 1) second_state_ = array(MemoryKind::optimizer, piece_size_);
    if (first_state_) first_state_->fill_zero();
    if (second_state_) second_state_->fill_zero();
}

BufferPointer BucketState::array(MemoryKind kind, std::size_t elements) const { return make_buffer(account_, kind, elements * sizeof(float)); }

float* BucketState::parameters() {
    core::require(whole_parameters_ != nullptr, "parameters are gathered before they are read");
    return whole_parameters_->data();
}

float* BucketState::owned_parameters() {
    if (shards(Sharding::parameters)) return piece_parameters_->data();
    return whole_parameters_->data() + (shards(Sharding::optimizer) ? piece_begin() : 0);
}

float* BucketState::gradient() {
    if (!whole_gradient_) {
        whole_gradient_ = array(MemoryKind::gradients, padded_);
        whole_gradient_->fill_zero();
    }
    return whole_gradient_->data();
}

std::span<float> BucketState::piece_gradient() {
    if (shards(Sharding::gradients)) return piece_gradient_->span();
    if (shards(Sharding::optimizer)) return {gradient() + piece_begin(), piece_size_};
    return whole_gradient();
}

void BucketState::begin_gather() {
    if (!shards(Sharding::parameters)) return;  // the pieces are where they belong
    if (!whole_parameters_) whole_parameters_ = array(MemoryKind::parameters, padded_);
    std::memcpy(whole_parameters_->data() + piece_begin(), piece_parameters_->data(), piece_size_ * sizeof(float));
}

void BucketState::release_parameters() {
    if (shards(Sharding::parameters)) whole_parameters_.reset();
}

void BucketState::finish_reduce_scatter() {
    if (!shards(Sharding::gradients)) return;
    cpu::kernels().accumulate(static_cast<std::int64_t>(piece_size_), gradient() + piece_begin(), piece_gradient_->data());
    whole_gradient_.reset();
}

void BucketState::zero_gradients() {
    if (piece_gradient_) piece_gradient_->fill_zero();
    if (whole_gradient_) whole_gradient_->fill_zero();
}

void BucketState::update(const schedule::Optimizer& optimizer, std::int64_t step) {
    const cpu::Kernels& k = cpu::kernels();
    const auto rate = static_cast<float>(optimizer.learning_rate);
    for_each_owned([&](model::ParameterId id, std::int64_t, float* values, const float* gradients, std::int64_t count, std::size_t at) {
        const float decay = graph_.parameter(id).decays ? static_cast<float>(optimizer.weight_decay) : 0.0f;
        if (optimizer.kind == schedule::OptimizerKind::sgd) {
            k.sgd(count, rate, static_cast<float>(optimizer.momentum), decay, gradients, values, first_state_ ? first_state_->data() + at : nullptr);
            return;
        }
        cpu::AdamStep adam{};
        adam.learning_rate = rate;
        adam.beta1 = static_cast<float>(optimizer.beta1);
        adam.beta2 = static_cast<float>(optimizer.beta2);
        adam.epsilon = static_cast<float>(optimizer.epsilon);
        adam.weight_decay = decay;
        adam.correction1 = static_cast<float>(1.0 - std::pow(optimizer.beta1, static_cast<double>(step + 1)));
        adam.correction2 = static_cast<float>(1.0 - std::pow(optimizer.beta2, static_cast<double>(step + 1)));
        adam.is_decoupled = optimizer.kind == schedule::OptimizerKind::adamw;
        k.adam(count, adam, gradients, values, first_state_->data() + at, second_state_->data() + at);
    });
}

}  // namespace exec
