// Tells planning what an operator touches, and clears what it left uncleared.
#pragma once

#include "exec/backend/operator_kernels.h"
#include "exec/cuda/backend/work_context.h"
#include "model/model_graph.h"

namespace exec::cuda {

class WatchedOperators : public OperatorKernels {
public:
    // Both outlive it.
    WatchedOperators(const model::ModelGraph& graph, WorkContext& work) : graph_(graph), work_(work) {}

    void forward(model::OperatorId op, const Operands& x, const MicroBatchPosition& position) const override;
    void backward_input(model::OperatorId op, const Operands& x, ConstTensorView dy,
                        const std::vector<TensorView>& dx, const MicroBatchPosition& position) const override;
    void backward_weight(model::OperatorId op, const Operands& x, ConstTensorView dy,
                         const std::vector<TensorView>& dparameters) const override;
    void forward_rows(model::OperatorId op, const Operands& x, const schedule::PieceRows& rows,
                      const MicroBatchPosition& position) const override;
    void backward_input_rows(model::OperatorId op, const Operands& x, ConstTensorView dy, TensorView dx,
                             const schedule::PieceRows& rows,
                             const MicroBatchPosition& position) const override;
    void choices(model::OperatorId router, const Operands& x, TensorView all) const override;
    void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const override;
    void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const override;
    void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                             TensorView pieces) const override;
    void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                           TensorView dpacked) const override;
    void unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const override;
    void move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                    TensorView to) const override;

private:
    void note(const Operands& x) const;

    const model::ModelGraph& graph_;
    WorkContext& work_;
};

}  // namespace exec::cuda
