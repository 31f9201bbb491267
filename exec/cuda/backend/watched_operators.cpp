#include "exec/cuda/backend/watched_operators.h"

namespace exec::cuda {

void WatchedOperators::note(const Operands& x) const {
    for (const TensorView& input : x.inputs) work_.reads(input.data());
    for (const ConstTensorView& parameter : x.parameters) work_.reads(parameter.data());
    work_.reads(x.keys.data());
    for (const KeyValues& segment : x.earlier) work_.reads(segment.first.data());
    for (const KeyValues& segment : x.earlier_gradients) work_.writes(segment.first.data());
    work_.reads(x.later_gradient.data());
}

void WatchedOperators::forward(model::OperatorId op, const Operands& x,
                               const MicroBatchPosition& position) const {
    note(x);
    work_.writes(x.output.data());
    work_.writes(x.saved_context.data());
    work_.writes(x.late_context.data());
    work_.operators_at_work().forward(op, x, position);
}

void WatchedOperators::backward_input(model::OperatorId op, const Operands& x, ConstTensorView dy,
                                      const std::vector<TensorView>& dx,
                                      const MicroBatchPosition& position) const {
    note(x);
    work_.reads(x.output.data());
    if (graph_.op(op).kind == model::OperatorKind::experts) work_.writes(x.saved_context.data());
    else work_.reads(x.saved_context.data());
    work_.writes(x.late_context.data());
    if (graph_.op(op).kind != model::OperatorKind::cross_entropy) work_.reads(dy.data());
    for (const TensorView& gradient : dx) work_.writes(gradient.data());
    work_.writes(x.dkeys.data());
    work_.operators_at_work().backward_input(op, x, dy, dx, position);
    for (const TensorView& gradient : dx) work_.clear_rest(gradient.data());
}

void WatchedOperators::backward_weight(model::OperatorId op, const Operands& x, ConstTensorView dy,
                                       const std::vector<TensorView>& dparameters) const {
    note(x);
    work_.reads(x.saved_context.data());
    work_.reads(x.late_context.data());
    work_.reads(dy.data());
    for (const TensorView& gradient : dparameters) work_.writes(gradient.data());
    work_.operators_at_work().backward_weight(op, x, dy, dparameters);
}

void WatchedOperators::forward_rows(model::OperatorId op, const Operands& x, const schedule::PieceRows& rows,
                                    const MicroBatchPosition& position) const {
    note(x);
    const TensorView own = x.output.rows(rows.to, rows.size());
    work_.writes_part(own.data(), own.bytes());
    work_.operators_at_work().forward_rows(op, x, rows, position);
}

void WatchedOperators::backward_input_rows(model::OperatorId op, const Operands& x, ConstTensorView dy,
                                           TensorView dx, const schedule::PieceRows& rows,
                                           const MicroBatchPosition& position) const {
    note(x);
    work_.reads(dy.data());
    const TensorView own = dx.rows(rows.to, rows.size());
    work_.writes_part(own.data(), own.bytes());
    work_.operators_at_work().backward_input_rows(op, x, dy, dx, rows, position);
}

void WatchedOperators::choices(model::OperatorId router, const Operands& x, TensorView all) const {
    work_.reads(x.output.data());
    work_.writes(all.data());
    work_.operators_at_work().choices(router, x, all);
}

void WatchedOperators::pack_keys(model::OperatorId attention, ConstTensorView packed,
                                 TensorView piece) const {
    work_.reads(packed.data());
    work_.writes(piece.data());
    work_.operators_at_work().pack_keys(attention, packed, piece);
}

void WatchedOperators::order_keys(model::OperatorId attention, ConstTensorView pieces,
                                  TensorView keys) const {
    work_.reads(pieces.data());
    work_.writes(keys.data());
    work_.operators_at_work().order_keys(attention, pieces, keys);
}

void WatchedOperators::split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                                           TensorView pieces) const {
    work_.reads(dkeys.data());
    work_.writes(pieces.data());
    work_.operators_at_work().split_key_gradients(attention, dkeys, pieces);
}

void WatchedOperators::unpack_keys(model::OperatorId attention, ConstTensorView piece,
                                   TensorView packed) const {
    work_.reads(piece.data());
    work_.writes(packed.data());
    work_.operators_at_work().unpack_keys(attention, piece, packed);
}

void WatchedOperators::move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                                  TensorView to) const {
    work_.reads(from.data());
    work_.writes(to.data());
    work_.operators_at_work().move_heads(attention, move, from, to);
}

void WatchedOperators::add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                                         TensorView dpacked) const {
    work_.reads(piece.data());
    work_.writes(dpacked.data());
    work_.operators_at_work().add_key_gradients(attention, piece, dpacked);
}

}  // namespace exec::cuda
