// Operators of a plan in bf16 on a processor that computes in fp32: what an operator reads is widened, its arithmetic and sums are fp32, what it writes is
// rounded, as tensor cores with fp32 accumulation do.
#pragma once

#include <vector>

#include "exec/cpu/operators.h"
#include "schedule/plan.h"

namespace exec::cpu {

class RoundedOperators : public OperatorKernels {
public:
    RoundedOperators(const model::ModelGraph& graph, const model::CostContext& context, const schedule::Precision& precision, int tensor_rank,
                     std::uint64_t seed, bool is_training);

    void forward(model::OperatorId op, const Operands& operands, const MicroBatchPlace& place) const override;
    void backward_input(model::OperatorId op, const Operands& operands, const float* dy, const std::vector<float*>& dx,
                        const MicroBatchPlace& place) const override;
    void backward_weight(model::OperatorId op, const Operands& operands, const float* dy, const std::vector<float*>& dparameters) const override;

    // Why this operator cannot run in bf16 here, or empty.
    static std::string obstacle(const model::Operator& op, const model::CostContext& context);

private:
    // An array that is bf16 in the rank's memory and fp32 while the operator works.
    struct Array {
        float* stored = nullptr;
        std::vector<float> wide;
    };
    bool is_rounded(model::TensorId tensor) const { return graph_.tensor(tensor).is_activation; }
    std::int64_t elements(model::TensorId tensor) const;
    std::int64_t elements(model::ParameterId parameter) const { return model::parameter_elements(graph_, parameter, context_); }
    // The fp32 copy; with `reads` it begins with the stored values. Null stays null.
    static float* widen(Array& array, float* stored, std::int64_t count, bool reads);
    // The same of rows that lie apart: the copy has them together.
    KeyValues widen_rows(Array& array, const KeyValues& stored, std::int64_t count) const;
    static void round(const Array& array);
    // Widened inputs, output, parameters and extra of an operator.
    struct Wide {
        std::vector<Array> arrays;
        Array output, extra, later;
        std::vector<Array> earlier;  // of pieces of the sequence before: keys and values, then their gradients
        Operands operands;
    };
    void widen_operands(model::OperatorId op, const Operands& operands, bool is_backward, Wide& wide) const;

    const model::ModelGraph& graph_;
    const model::CostContext context_;
    const schedule::Precision precision_;
    const Operators operators_;
};

}  // namespace exec::cpu
