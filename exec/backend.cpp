#include "exec/backend.h"

#include "core/errors.h"
#include "core/random.h"

namespace exec {

std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::int64_t op, std::int64_t sample) {
    std::uint64_t key = core::mix64(seed + 1);
    for (const std::int64_t part : {step, op, sample}) key = core::mix64(key + part);
    return key;
}

void ParameterUpdates::add_squares(ConstTensorView) {
    core::require(false, "a backend without clipping is not asked to clip");
}

void ParameterUpdates::reduce_squares(const schedule::Instruction&, const std::vector<int>&, Tag) {
    core::require(false, "a backend without clipping is not asked to clip");
}

namespace {
void refused(bool holds = false) {
    core::require(holds, "a backend is asked for the parallelism that its plans may have");
}
}  // namespace

void RankExchange::exchange(const std::vector<int>&, ConstTensorView, const std::vector<std::size_t>&,
                            TensorView, const std::vector<std::size_t>&, Tag) {
    refused();
}

RankExchange::RoutedTokenCounts RankExchange::exchange_counts(model::OperatorId, const Operands&,
                                                              const std::vector<int>&, Tag) {
    return refused(), RoutedTokenCounts();
}
std::vector<std::int64_t> OperatorKernels::expert_rows(model::OperatorId, const Operands&) const {
    return refused(), std::vector<std::int64_t>();
}
void OperatorKernels::forward_rows(model::OperatorId op, const Operands& operands,
                                   const schedule::PieceRows& rows,
                                   const MicroBatchPosition& position) const {
    Operands some = operands;
    for (int place = 0; place < rows.count; ++place) {
        some.inputs[0] = operands.inputs[0].rows(rows.from + place * rows.stride, rows.rows);
        some.output = operands.output.rows(rows.to + place * rows.rows, rows.rows);
        forward(op, some, position);
    }
}
void OperatorKernels::backward_input_rows(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                          TensorView dx, const schedule::PieceRows& rows,
                                          const MicroBatchPosition& position) const {
    for (int place = 0; place < rows.count; ++place)
        backward_input(op, operands, dy.rows(rows.from + place * rows.stride, rows.rows),
                       {dx.rows(rows.to + place * rows.rows, rows.rows)}, position);
}
void OperatorKernels::choices(model::OperatorId, const Operands&, TensorView) const { refused(); }
void OperatorKernels::pack_keys(model::OperatorId, ConstTensorView, TensorView) const { refused(); }
void OperatorKernels::order_keys(model::OperatorId, ConstTensorView, TensorView) const { refused(); }
void OperatorKernels::split_key_gradients(model::OperatorId, ConstTensorView, TensorView) const { refused(); }
void OperatorKernels::move_heads(model::OperatorId, HeadMove, ConstTensorView, TensorView) const {
    refused();
}
void OperatorKernels::add_key_gradients(model::OperatorId, ConstTensorView, TensorView) const { refused(); }
void OperatorKernels::unpack_keys(model::OperatorId, ConstTensorView, TensorView) const { refused(); }

}  // namespace exec
