// One operator of the graph on one rank: shapes, shares of tensor parallelism and places in the batch are
// resolved here, arithmetic is in kernels.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/unsupported.h"
#include "exec/backend.h"
#include "exec/cpu/mixture.h"
#include "model/model_graph.h"
#include "model/operators/cost_context.h"

namespace exec::cpu {

class Operators : public OperatorKernels {
public:
    // `is_training` false: evaluation, nothing is dropped.
    Operators(const model::ModelGraph& graph, const model::CostContext& context, int tensor_rank,
              std::uint64_t seed, bool is_training = true, int context_rank = 0);

    void forward(model::OperatorId op, const Operands& operands,
                 const MicroBatchPosition& place) const override;
    // cross_entropy takes dy = one number in host memory, the weight of its micro-batch.
    void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                        const std::vector<TensorView>& dx, const MicroBatchPosition& place) const override;
    void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                         const std::vector<TensorView>& dparameters) const override;

    std::vector<std::int64_t> expert_rows(model::OperatorId dispatch,
                                          const Operands& operands) const override;
    void choices(model::OperatorId router, const Operands& operands, TensorView all) const override;
    void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const override;
    void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const override;
    void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                             TensorView pieces) const override;
    void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                           TensorView dpacked) const override;
    void unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const override;
    void move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                    TensorView to) const override;

    // Why this operator cannot run here ("relative position bias").
    static std::optional<core::Unsupported> unsupported(const model::ModelGraph& graph,
                                                        const model::Operator& op);

private:
    struct Rotation {
        std::int64_t dimension = 0;
        std::vector<float> cosines, sines;
    };
    struct Sizes {
        std::int64_t rows = 0, columns = 0;  // of the tensor on this rank
        std::int64_t first_row = 0;          // index of its first row in the whole micro-batch
    };

    const model::Operator& op(model::OperatorId id) const { return graph_.op(id); }
    void make_attention_tables();
    Sizes sizes_of(model::TensorId tensor) const;
    std::int64_t rows_per_sample(model::TensorId tensor) const;
    std::int64_t elements(model::TensorId tensor) const;
    std::int64_t parameter_rows(model::ParameterId parameter, int dimension) const;
    struct Classes {
        std::int64_t rows, columns, first, valid;
    };
    Classes classes_of(model::TensorId logits) const;
    MixtureTask mixture_of(const model::Operator& op) const;
    void embedding(const model::Operator& op, const Operands& operands) const;
    void embedding_weight(const model::Operator& op, const Operands& operands, const float* dy,
                          float* dtable) const;
    void dropout(model::OperatorId id, const Operands& operands, const MicroBatchPosition& place) const;
    // Runs forward when dy is null. Null gradients are not computed.
    struct AttentionGradients {
        float *queries = nullptr, *keys = nullptr, *bias = nullptr;
    };
    void attention(model::OperatorId id, const Operands& operands, const MicroBatchPosition& place,
                   const float* dy, const AttentionGradients& gradients) const;
    void cross_entropy(const model::Operator& op, const Operands& operands) const;
    void cross_entropy_backward(const model::Operator& op, const Operands& operands, float weight,
                                float* dlogits) const;
    void log_sums(const model::Operator& op, const Operands& operands, std::vector<float>& sums,
                  std::vector<float>& labels) const;
    // Sample and token of a row of an activation over tokens.
    struct TokenPosition {
        std::int64_t sample = 0, token = 0;
    };
    TokenPosition place_of(std::int64_t row, std::int64_t tokens) const;
    // Columns of keys and values in packed rows on this rank.
    struct KeyColumns {
        std::int64_t first = 0, count = 0, row = 0;
    };
    KeyColumns key_columns(model::OperatorId attention) const;
    // Calls move(row of the pieces, row of the sequence) for every token of every sample.
    template <class Move>
    void for_each_key_row(const Move& move) const;
    // Of a gathered projection, the parts of the head of keys and values that this rank's queries read: calls
    // move(element of the pieces, element of rows [2 head_dimension], count).
    template <class Move>
    void for_each_part_of_head(model::OperatorId attention, const Move& move) const;
    std::uint64_t random_key(model::OperatorId id, const MicroBatchPosition& place,
                             std::int64_t sample) const;

    const model::ModelGraph& graph_;
    const model::CostContext context_;
    const int tensor_rank_;
    const std::uint64_t seed_;
    const bool is_training_;
    std::vector<std::int32_t> places_;  // positions of a segment's tokens in the whole sequence
    std::vector<std::vector<std::int32_t>>
        group_places_;  // tokens of each rank of the context-parallel group
    const int context_rank_;
    // Of the scales of queries' and keys' norms: from backward_input, which knows the normalised ones'
    // gradients, to backward_weight. By operator, micro-batch and segment; one thread of a rank computes.
    mutable std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::vector<float>>
        norm_gradients_;
    std::map<std::int32_t, Rotation> rotations_;                 // by operator
    std::map<std::int32_t, std::vector<float>> slopes_;          // ALiBi, of this rank's heads
    std::map<std::int32_t, std::vector<std::int32_t>> buckets_;  // T5's relative positions, [tokens, keys]
};

}  // namespace exec::cpu
