// Arithmetic of one operator on one rank, and the arrays that it works on.
//
// Addresses are in the backend's own memory and may mean nothing to the host. Arrays are passed as views,
// which say what their elements are (tensor_view.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/optional_index.h"
#include "exec/tensor_view.h"
#include "model/model_fwd.h"
#include "schedule/program/pieces.h"

namespace exec {

// The position of a micro-batch in training: what random masks depend on.
struct MicroBatchPosition {
    std::int64_t step = 0;
    std::int32_t micro_batch = 0;
    std::vector<std::int64_t> samples;  // global numbers
    float loss_weight = 1;              // of the gradient that starts its backward
    std::int32_t segment = 0;           // of the sequence
    bool is_training = true;            // false: nothing is dropped
};

// Keys and values of one attention operator for one segment of a sequence: rows of the segment's tokens,
// sample by sample, keys of all heads before values of all heads.
struct KeyValues {
    TensorView first;         // from the first of them on
    std::int64_t stride = 0;  // elements from row to row
};

// Arrays of an operator on this rank, row-major, tensors as model::tensor_bytes counts them.
struct Operands {
    std::vector<TensorView> inputs;  // no array where nothing needs the values (backward)
    TensorView output;
    std::vector<ConstTensorView> parameters;
    OpaqueView saved_context;  // of model::saved_for_backward(...).saved_context bytes
    OpaqueView late_context;   // ... and .late_context
    const MicroBatchPosition* place = nullptr;
    // Experts over several ranks: rows of each block of routed tokens, a block for every source rank and
    // own expert, sources outermost; null = this rank's own routed tokens.
    const std::vector<std::int64_t>* expert_rows = nullptr;
    // Attention in a part of a sequence: keys and values of the parts before, in order, and in backward
    // their gradients, to be added to; then also what later parts left for this one's.
    std::vector<KeyValues> earlier, earlier_gradients;
    TensorView later_gradient;
    // Attention over a context-parallel group: keys and values of all tokens [samples, sequence, 2 kv_heads
    // d], and in backward their gradient.
    TensorView keys;
    TensorView dkeys;
    // Of a ring: the member of the group whose tokens alone those are, [samples, tokens of a rank, 2 kv_heads
    // d]; forward then merges what it finds into the output and the sums, unless they are its own.
    core::OptionalIndex key_rank;
};

// What a random mask of an operator starts from: the same whatever the plan and the backend.
std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::int64_t op, std::int64_t sample);

// Arithmetic of one operator of the graph on one rank.
class OperatorKernels {
public:
    virtual ~OperatorKernels() = default;
    virtual void forward(model::OperatorId op, const Operands& operands,
                         const MicroBatchPosition& position) const = 0;
    // Adds to the gradients of the inputs; no array where none is wanted. cross_entropy takes dy = one number
    // in host memory, the weight of its micro-batch; where the gradient has the array of the logits
    // (model::gradient_overwrites), it is written over them.
    virtual void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                const std::vector<TensorView>& dx,
                                const MicroBatchPosition& position) const = 0;
    // Adds to the gradients of the parameters.
    virtual void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                 const std::vector<TensorView>& dparameters) const = 0;

    // Of a linear layer some of its rows: of the result, or of the gradient of its input. Operands are those
    // of all rows. By default a call of the above for each run of rows, with operands of these alone.
    virtual void forward_rows(model::OperatorId op, const Operands& operands, const schedule::PieceRows& rows,
                              const MicroBatchPosition& position) const;
    virtual void backward_input_rows(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                     TensorView dx, const schedule::PieceRows& rows,
                                     const MicroBatchPosition& position) const;

    // Expert parallelism: how many routed tokens a rank has for each expert; the operands are those of
    // `dispatch`. Of backends whose arrays the host reads.
    virtual std::vector<std::int64_t> expert_rows(model::OperatorId dispatch, const Operands& operands) const;
    // Routed tokens before any is dropped, by expert, in fp32 and the backend's memory; the operands are
    // those of `router` in backward.
    virtual void choices(model::OperatorId router, const Operands& operands, TensorView all) const;
    // Keys and values of packed rows [samples, tokens of this rank or segment of a sequence, q k v] as an
    // array of their own, [samples, tokens, 2 kv_heads d]; context parallelism: between such pieces of a
    // group one after the other and rows in the order of the sequence. Where the projection is gathered
    // (model::gathers_projection) a piece is the whole packed rows of a tensor-parallel rank, and the keys
    // are those of one head, [samples, tokens, 2 d], at the begin of their array. Elements are as the rank
    // stores activations.
    virtual void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const;
    virtual void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const;
    virtual void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                                     TensorView pieces) const;
    virtual void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                                   TensorView dpacked) const;  // adds
    // The other way round than pack_keys.
    virtual void unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const;
    // Exchanged heads (model::exchanges_heads), of an attention's packed rows or of its output: between rows
    // and the shares that the ranks of the group get or gave, one after the other, each [samples, tokens of a
    // rank, heads of a rank].
    struct HeadMove {
        bool is_output = false;
        bool has_all_tokens = false;  // rows [samples, tokens, heads of this rank]; else [samples, tokens of
                                      // this rank, heads]
        bool to_shares = false;
    };
    virtual void move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                            TensorView to) const;
};

}  // namespace exec
