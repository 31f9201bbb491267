#include "exec/backend.h"

#include "core/errors.h"
#include "core/random.h"

namespace exec {

std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::int64_t op, std::int64_t sample) {
    std::uint64_t key = core::mix64(seed + 1);
    for (const std::int64_t part : {step, op, sample})
        key = core::mix64(key + static_cast<std::uint64_t>(part));
    return key;
}

void Backend::add_squares(core::DataType, const float*, std::int64_t) {
    core::require(false, "a backend without clipping is not asked to clip");
}

void Backend::reduce_squares(const schedule::Instruction&, const std::vector<int>&, Tag) {
    core::require(false, "a backend without clipping is not asked to clip");
}

namespace {
void refused(bool holds = false) {
    core::require(holds, "a backend is asked for the parallelism that its plans may have");
}
}  // namespace

void Backend::exchange(const std::vector<int>&, core::DataType, const float*, const std::vector<std::size_t>&,
                       float*, const std::vector<std::size_t>&, Tag) {
    refused();
}

Backend::RoutedTokenCounts Backend::exchange_counts(model::OperatorId, const Operands&,
                                                    const std::vector<int>&, Tag) {
    return refused(), RoutedTokenCounts();
}
std::vector<std::int64_t> OperatorKernels::expert_rows(model::OperatorId, const Operands&) const {
    return refused(), std::vector<std::int64_t>();
}
void OperatorKernels::choices(model::OperatorId, const Operands&, float*) const { refused(); }
void OperatorKernels::pack_keys(model::OperatorId, const float*, float*) const { refused(); }
void OperatorKernels::order_keys(model::OperatorId, const float*, float*) const { refused(); }
void OperatorKernels::split_key_gradients(model::OperatorId, const float*, float*) const { refused(); }
void OperatorKernels::add_key_gradients(model::OperatorId, const float*, float*) const { refused(); }

float* element_at(core::DataType type, float* array, std::int64_t element) {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(array) +
                                    element * static_cast<std::int64_t>(core::size_of(type).value));
}

}  // namespace exec
