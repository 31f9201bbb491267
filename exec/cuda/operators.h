// One operator of the graph on one rank as launches: shapes, shares of tensor parallelism, precision and the choice among libraries and our own kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/cuda/machine.h"
#include "model/cost.h"
#include "model/model_graph.h"
#include "schedule/plan.h"

namespace exec::cuda {

Type type_of(core::DataType type);  // of storage

// What operators need of the backend at work.
class Workplace {
public:
    virtual ~Workplace() = default;
    virtual Stream stream() = 0;  // of the instruction at work
    // Room for one call, the same for every call of a slot; of compute instructions only.
    virtual void* scratch(int slot, std::size_t bytes) = 0;
    // True when `data` is all of an array that was to be cleared and is not yet: the caller writes it instead of adding to it. Else, if need be, it is cleared.
    virtual bool takes_over_zeros(void* data, std::size_t bytes) = 0;
    virtual const std::uint64_t* mask_keys(model::OperatorId op, std::int32_t micro_batch) = 0;
    virtual const StepFactors* factors() = 0;
};

// Slots of scratch. Those of one operator's call must differ.
enum Slot { weight_slot, sums_slot, attention_slot, turned_slot, gradient_slot, bias_slot, partial_slot };

class Operators : public OperatorKernels {
public:
    // `is_training` false: evaluation, nothing is dropped.
    Operators(const model::ModelGraph& graph, const schedule::Plan& plan, int tensor_rank, bool is_training, Machine& machine, Workplace& workplace);
    ~Operators() override;

    void forward(model::OperatorId op, const Operands& operands, const MicroBatchPlace& place) const override;
    void backward_input(model::OperatorId op, const Operands& operands, const float* dy, const std::vector<float*>& dx,
                        const MicroBatchPlace& place) const override;
    void backward_weight(model::OperatorId op, const Operands& operands, const float* dy, const std::vector<float*>& dparameters) const override;

    // Why this operator cannot run here, or empty.
    static std::string obstacle(const model::ModelGraph& graph, const model::Operator& op);

private:
    struct Sizes {
        std::int64_t rows = 0, columns = 0, first_row = 0;
        std::int64_t count() const { return rows * columns; }
    };
    const model::Operator& op(model::OperatorId id) const { return graph_.op(id); }
    Sizes sizes_of(model::TensorId tensor) const;
    std::int64_t rows_per_sample(model::TensorId tensor) const;
    std::int64_t extent(model::ParameterId parameter, int dimension) const;
    ClassShape classes_of(const model::Operator& op) const;
    AttentionShape attention_shape(model::OperatorId id, std::int32_t micro_batch) const;
    RotationShape rotation_shape(model::OperatorId id, const AttentionShape& shape) const;
    ImageShape image_shape(const model::Operator& op) const;
    Values values(const float* parameter) const { return {parameter, parameter_type_}; }
    Sums sums(float* gradient) const { return {gradient, gradient_type_}; }
    const void* weight(model::ParameterId id, const float* parameter, int slot) const;  // in the precision of products
    bool accumulates(model::TensorId tensor, float* dx) const;

    void linear(const model::Operator& op, const Operands& operands) const;
    void attention(model::OperatorId id, const Operands& operands, std::int32_t micro_batch) const;
    void attention_backward(model::OperatorId id, const Operands& operands, const float* dy, float* dqkv, std::int32_t micro_batch) const;
    void unfused_attention(const AttentionShape& shape, const void* qkv, void* y, void* extra) const;
    void unfused_attention_backward(const AttentionShape& shape, const void* qkv, void* extra, const void* dy, void* dqkv) const;
    Product product() const;

    const model::ModelGraph& graph_;
    const schedule::Plan& plan_;
    const model::CostContext context_;
    const int tensor_rank_;
    const bool is_training_;
    Machine& machine_;
    const Kernels& kernels_;
    Workplace& workplace_;
    const Type type_, parameter_type_, gradient_type_;
    struct Tables {  // device memory
        std::int64_t rotary_dimension = 0;
        float *cosines = nullptr, *sines = nullptr, *slopes = nullptr;
    };
    std::map<std::int32_t, Tables> tables_;  // by operator
    std::vector<void*> blocks_;
};

}  // namespace exec::cuda
