// Operators of a plan in bf16 or fp16 on a processor that computes in fp32. Inputs are widened to fp32,
// arithmetic and sums are fp32, and outputs are rounded to 16 bits, as tensor cores with fp32 accumulation
// do. In fp8 plans the arrays are bf16 too; the operands of linear layers are rounded to fp8 before they are
// multiplied (exec/float8.h).
#pragma once

#include <vector>

#include "exec/cpu/operators.h"
#include "exec/float8.h"
#include "schedule/plan/plan.h"

namespace exec::cpu {

class RoundedOperators : public OperatorKernels {
public:
    RoundedOperators(const model::ModelGraph& graph, const model::CostContext& context,
                     const schedule::Precision& precision, int tensor_rank, std::uint64_t seed,
                     bool is_training, int context_rank = 0);

    void forward(model::OperatorId op, const Operands& operands,
                 const MicroBatchPosition& place) const override;
    void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                        const std::vector<TensorView>& dx, const MicroBatchPosition& place) const override;
    void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                         const std::vector<TensorView>& dparameters) const override;

    std::vector<std::int64_t> expert_rows(model::OperatorId dispatch,
                                          const Operands& operands) const override;
    void choices(model::OperatorId router, const Operands& operands, TensorView all) const override;
    void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const override {
        operators_.pack_keys(attention, packed, piece);
    }
    void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const override {
        operators_.order_keys(attention, pieces, keys);
    }
    void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                             TensorView pieces) const override {
        operators_.split_key_gradients(attention, dkeys, pieces);
    }
    void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                           TensorView dpacked) const override;
    void unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const override {
        operators_.unpack_keys(attention, piece, packed);
    }
    void move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                    TensorView to) const override {
        operators_.move_heads(attention, move, from, to);
    }

private:
    // An array of 16 bits in the rank's memory and fp32 while the operator works.
    struct Array {
        TensorView stored;
        std::vector<float> wide;
    };
    bool is_in_fp8(model::OperatorId op) const { return is_in_fp8_[op.index] != 0; }
    // The fp32 copy of an array in 16 bits; with `reads` it begins with the stored values. Other arrays stay
    // as they are.
    static TensorView widen(Array& array, const TensorView& stored, bool reads);
    // The same of what is only read.
    static ConstTensorView widen(std::vector<float>& copy, const ConstTensorView& stored);
    // The same of rows that lie apart: the copy has them together.
    KeyValues widen_rows(Array& array, const KeyValues& stored, std::int64_t count) const;
    static void round(const Array& array);
    static void round_to_fp8(Float8 format, std::vector<float>& numbers);
    // What an operator keeps of its own: numbers in the format of activations, then octets (a mask), which
    // stay as they are.
    struct SavedContext {
        std::int64_t numbers = 0, octets = 0;
        std::uint16_t* stored = nullptr;
        std::vector<float> wide;
    };
    static std::int64_t expert_rows(const model::MixtureShape& shape, const Operands& operands);
    SavedContext saved_context_of(model::OperatorId op, const Operands& operands) const;
    SavedContext late_context_of(model::OperatorId op, const Operands& operands) const;
    OpaqueView widen(SavedContext& saved_context, OpaqueView stored, bool reads) const;
    void round(const SavedContext& saved_context) const;
    // Widened inputs, output, parameters and saved_context of an operator.
    struct WidenedOperands {
        std::vector<Array> inputs;
        std::vector<std::vector<float>> parameters;
        Array output, later, keys, key_gradients;
        SavedContext saved_context, late_context;
        std::vector<Array> earlier;  // of the sequence before: keys and values, then their gradients
        Operands operands;
    };
    void widen_operands(model::OperatorId op, const Operands& operands, bool is_backward,
                        WidenedOperands& wide) const;

    const model::ModelGraph& graph_;
    const model::CostContext context_;
    const core::DataType type_;  // in which arrays are stored
    const Operators operators_;
    std::vector<char> is_in_fp8_;  // by operator
};

}  // namespace exec::cpu
