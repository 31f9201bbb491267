// One operator of the graph on one rank as launches: shapes, shares of tensor parallelism, precision and the
// choice among libraries and our own kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/unsupported.h"
#include "exec/backend.h"
#include "exec/cuda/machine.h"
#include "exec/cuda/operator/attention_tables.h"
#include "exec/cuda/operator/fusion.h"
#include "exec/fused.h"
#include "model/model_graph.h"
#include "model/operators/cost_context.h"
#include "schedule/plan/plan.h"

namespace exec::cuda {

Type type_of(core::DataType type);  // of storage

// The address of an element of a device array.
inline void* at(const void* base, std::int64_t element, Type type) {
    return static_cast<char*>(const_cast<void*>(base)) + element * static_cast<std::int64_t>(size_of(type));
}

// What operators need of the backend at work.
class ExecutionContext {
public:
    virtual ~ExecutionContext() = default;
    virtual Stream stream() = 0;  // of the instruction at work
    // Room for one call, the same for every call of a slot on a stream.
    virtual void* scratch(int slot, std::size_t bytes) = 0;
    // Room for what an operator keeps of a micro-batch from forward to backward, beside its saved context.
    virtual void* kept(model::OperatorId op, std::int32_t micro_batch, std::size_t bytes) = 0;
    // True when all of this was to be cleared and is not yet: the caller writes it instead of adding to it.
    // Else what of it is to be cleared is.
    virtual bool takes_over_zeros(void* data, std::size_t bytes) = 0;
    // Clears what of this is to be cleared and is not yet.
    virtual void clear_zeros(void* data, std::size_t bytes) = 0;
    // What a launch touches beyond the operands of the operator at work, or later than it: for planning.
    virtual void reads(const void* data) = 0;
    virtual void writes(void* data) = 0;
    virtual bool allows(Fused what) const = 0;
    // Do gradients stay for the gradients of weights, which another instruction computes?
    virtual bool keeps_gradients() const = 0;
    virtual const std::uint64_t* mask_keys(model::OperatorId op, std::int32_t micro_batch) = 0;
    // Where random numbers of libraries begin on this rank; null: masks must be those of the CPU.
    virtual const std::uint64_t* library_offset() = 0;
    virtual const StepFactors* factors() = 0;
    // What the device has computed, waited for. Empty while the run is planned.
    virtual std::vector<float> fetch(const float* from, std::size_t count) = 0;
};

// Routed tokens divided over blocks as evenly as can be: the first blocks get one more.
std::vector<std::int64_t> divided_evenly(std::int64_t routed_tokens, std::size_t blocks);

// Slots of scratch. Those of one operator's call must differ.
enum Slot {
    weight_slot,
    sums_slot,
    attention_slot,
    turned_slot,
    gradient_slot,
    bias_slot,
    partial_slot,
    loss_slot,
    turned_keys_slot,
    key_gradient_slot,
    routing_slot,
    counts_slot,
    logits_slot,
    second_weight_slot,
    expert_slot,
    low_input_slot,
    low_weight_slot,
    low_gradient_slot,
    guess_slot,
    joined_keys_slot,
    ring_slot
};

class Operators : public OperatorKernels {
public:
    // `is_training` false: evaluation, nothing is dropped.
    // `graph`: of whole sequences or of one segment of them.
    Operators(const model::ModelGraph& graph, const schedule::Plan& plan, int tensor_rank, int context_rank,
              bool is_training, std::shared_ptr<const AttentionTables> tables, Machine& machine,
              ExecutionContext& execution);
    ~Operators() override;

    void forward(model::OperatorId op, const Operands& operands,
                 const MicroBatchPosition& position) const override;
    void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                        const std::vector<TensorView>& dx, const MicroBatchPosition& position) const override;
    void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                         const std::vector<TensorView>& dparameters) const override;
    // One launch for all runs of rows.
    void forward_rows(model::OperatorId op, const Operands& operands, const schedule::PieceRows& rows,
                      const MicroBatchPosition& position) const override;
    void backward_input_rows(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                             TensorView dx, const schedule::PieceRows& rows,
                             const MicroBatchPosition& position) const override;
    void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const override;
    void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const override;
    void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                             TensorView pieces) const override;
    void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                           TensorView dpacked) const override;
    void unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const override;
    void move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                    TensorView to) const override;
    void choices(model::OperatorId router, const Operands& operands, TensorView all) const override;
    // Routed tokens that this rank has for each expert, in fp32.
    void count_rows(model::OperatorId dispatch, const void* probabilities, float* counts) const;
    // Launches that wait for the operator after theirs.
    Fusion& fusion() const { return *fusion_; }

    // Who has computed attention so far, and why not cuDNN: each choice once.
    const std::set<KernelChoice>& kernel_choices() const { return kernel_choices_; }

    // Why this operator cannot run here.
    static std::optional<core::Unsupported> unsupported(const model::ModelGraph& graph,
                                                        const model::Operator& op);

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
    TokenRange token_range() const;  // of this rank's tokens in their sequence
    TokenRange token_range_of(std::int64_t context_rank) const;
    // The same for positions, which a segment's own operators count from its first token.
    TokenRange positions() const { return graph_.part.is_whole() ? token_range() : TokenRange{}; }
    AttentionShape attention_shape(model::OperatorId id, std::int32_t micro_batch) const;
    // Of a ring the piece that the operands are of.
    AttentionShape attention_shape(model::OperatorId id, const Operands& x, std::int32_t micro_batch) const;
    RotationShape rotation_shape(model::OperatorId id, const AttentionShape& shape) const;
    ImageShape image_shape(const model::Operator& op) const;
    Values values(const ConstTensorView& parameter) const { return {parameter.data(), parameter_type_}; }
    // The gradient of a parameter: written whole, where it is all new, or added to.
    Sums sums(const TensorView& gradient) const;
    Sums added_sums(const TensorView& gradient) const;
    const void* weight(const ConstTensorView& parameter, int slot) const;  // in the precision of products
    bool accumulates(const TensorView& dx) const;
    // What a kernel adds to what it writes into dx: null, dx itself, or an array that dx is to be a copy of.
    const void* base_of(const TensorView& dx) const;

    // Where the gradient of the operator's output lies.
    const void* contents_of_gradient(const model::Operator& op, const void* dy) const {
        return fusion_->contents_of(dy, op.parameters.empty() || !execution_.keeps_gradients());
    }

    // True for an operator that neither launches nor moves anything: its output is its input's array.
    bool is_identity(const model::Operator& op) const;
    const model::Operator* only_reader(
        model::TensorId tensor) const;  // seen through identities; null: several, or none
    bool is_approximate_gelu(const model::Operator& op) const {
        return op.kind == model::OperatorKind::gelu && op.attributes.is_tanh_approximation;
    }
    bool is_stored_across(model::TensorId logits) const;

    void linear(model::OperatorId id, const Operands& operands) const;
    void linear_backward(model::OperatorId id, const Operands& operands, const void* dy,
                         const TensorView& dx) const;
    void linear_weights(model::OperatorId id, const Operands& operands, const void* dy,
                        const std::vector<TensorView>& dparameters) const;
    bool gelu_with_product(const Operands& operands) const;
    bool gelu_backward_with_product(const model::Operator& op, const Operands& operands, const void* dy,
                                    const TensorView& dx) const;
    void add(model::OperatorId id, const Operands& operands) const;
    void add_backward(const model::Operator& op, const void* dy, const std::vector<TensorView>& dx) const;
    using FusedShape = std::tuple<bool, std::int64_t, std::int64_t>;  // kind, rows, width
    // Is this fusion allowed, and does it pay? Asked once for every shape.
    bool is_fused(Fused what, const FusedShape& shape,
                  const std::function<Alternatives()>& alternatives) const;
    bool norm_takes_sum(bool is_layer, std::int64_t rows, std::int64_t width) const;
    bool norm_gradients_are_one(bool is_layer, std::int64_t rows, std::int64_t width) const;
    void norm(const model::Operator& op, const Operands& operands) const;
    void norm_backward(model::OperatorId id, const Operands& operands, const void* dy,
                       const TensorView& dx) const;
    void norm_weights(model::OperatorId id, const Operands& operands, const void* dy,
                      const std::vector<TensorView>& dparameters) const;

    void attention(model::OperatorId id, const Operands& operands, std::int32_t micro_batch) const;
    void attention_backward(model::OperatorId id, const Operands& operands, const void* dy,
                            const TensorView& dqkv, std::int32_t micro_batch) const;
    // Where queries and where keys and values lie, their rotated copies where there are such.
    struct AttentionInput {
        const void *queries = nullptr, *memory = nullptr;  // memory null: behind the queries
    };
    void attend(const AttentionShape& shape, const AttentionInput& in, void* y, float* log_sums) const;
    void attend_to_others(const AttentionShape& shape, const AttentionInput& in, void* y,
                          float* log_sums) const;
    AttentionInput attention_input(model::OperatorId id, const Operands& operands,
                                   const AttentionShape& shape, const RotationShape& rotation,
                                   std::int32_t micro_batch) const;
    // Are queries and keys turned where they lie, once for forward and backward?
    bool turns_in_place(model::OperatorId id, const AttentionShape& shape,
                        const RotationShape& rotation) const;
    // Segments of a sequence: keys and values of those before, and of this one, in one array; and what its
    // gradient means for each of them.
    const void* joined_keys(const Operands& operands, const AttentionShape& shape) const;
    void add_joined_gradients(const Operands& operands, const AttentionShape& shape, const void* joined,
                              void* dqkv) const;
    // Keys and values of this rank's tokens, between arrays whose samples have so many rows of so many
    // elements.
    ColumnMove key_rows(const AttentionShape& shape, std::int64_t from_row, std::int64_t from_tokens,
                        std::int64_t to_row, std::int64_t to_tokens) const;
    // May cuDNN's fused kernels compute this attention? The answer is kept for the run's report.
    bool fuses_attention(const AttentionShape& shape) const;
    void unfused_attention(const AttentionShape& shape, const AttentionInput& in, void* y,
                           void* saved_context) const;
    void unfused_attention_backward(const AttentionShape& shape, const AttentionInput& in,
                                    void* saved_context, const void* dy, void* dqkv, void* dmemory) const;
    Product product() const;

    // A matrix in fp8: [rows, columns], and with both exchanged, where asked for; a number in device memory
    // takes octets back.
    struct Octets {
        const void *plain = nullptr, *turned = nullptr;
        const float* unscale = nullptr;
    };
    struct Matrix {
        Type type = Type::fp32;
        std::int64_t rows = 0, columns = 0;
        const void* data = nullptr;
    };
    // Room for it, which the same call with `casts` fills.
    Octets octets(int slot, Float8 format, const Matrix& x, bool plain, bool turned, bool casts) const;
    bool is_in_fp8(model::OperatorId op) const { return is_in_fp8_[op.index] != 0; }
    // The linear layer in fp8 that alone reads this tensor, on the same rank; null: there is none.
    const model::Operator* reader_in_fp8(model::TensorId tensor) const;
    // Where the kernel that writes x writes octets for that layer too. After it follows confirm_octets.
    CastAlong cast_along(const model::Operator& reader, std::int64_t count) const;
    void confirm_octets(const model::Operator& reader, std::int64_t count, const void* x) const;
    bool norm_takes_octets(bool is_layer, std::int64_t rows, std::int64_t width) const;
    bool gated_takes_octets(Unary kind, std::int64_t rows, std::int64_t width) const;
    // A gated activation with octets for the layer that reads it, where that is taken.
    bool gated_with_octets(const model::Operator& op, const Operands& operands) const;
    // Makes the product of a linear layer (forward, of its input's gradient, of its weight's) one of octets,
    // if the machine has that; null: it stays as it is.
    std::optional<Product> forward_in_fp8(model::OperatorId op, const Product& half, const Matrix& x,
                                          const Matrix& weight) const;
    std::optional<Product> backward_in_fp8(model::OperatorId op, const Product& half, const Matrix& dy,
                                           const Matrix& weight) const;
    std::optional<Product> weights_in_fp8(model::OperatorId op, const Product& half, const Matrix& dy,
                                          const Matrix& x) const;
    Matrix weight_matrix(model::ParameterId id, const ConstTensorView& parameter) const;

    RoutingShape routing_shape(const model::Operator& mixture) const;
    const void* routing(const model::Operator& mixture, const void* probabilities) const;
    // How routed tokens are divided over experts: `blocks` where one launch makes the products of all, else
    // `rows` of each block, which the host knows.
    struct ExpertRows {
        std::int64_t most = 0;  // of all blocks; the number itself where `is_exact`
        bool is_exact = true;
        std::vector<std::int64_t> rows = {};
        std::optional<ExpertBlocks> blocks = {};
    };
    ExpertRows rows_of_experts(model::OperatorId id, const Operands& operands, bool is_forward) const;
    std::vector<std::int64_t> fetched_rows(const model::Operator& op, const Operands& operands) const;
    // Does one launch make the products of all experts?
    bool joins_experts(model::OperatorId id) const;
    Alternatives joined_experts_or_not(model::OperatorId id) const;
    void expert_products(const ExpertRows& rows, std::int64_t experts, std::int64_t n, std::int64_t k,
                         const void* a, const void* weights, bool transposes, void* c,
                         bool accumulates) const;
    void expert_weight_gradients(const ExpertRows& rows, std::int64_t experts, std::int64_t m, std::int64_t n,
                                 const void* a, const void* b, Sums gradients) const;
    void router(const model::Operator& op, const Operands& operands) const;
    const void* router_gradient(const model::Operator& op, const Operands& operands, const void* dy) const;
    void router_backward(const model::Operator& op, const Operands& operands, const void* dy,
                         const TensorView& dx) const;
    void router_weights(const model::Operator& op, const Operands& operands, const void* dy,
                        const TensorView& dweight) const;
    void dispatch(const model::Operator& op, const Operands& operands) const;
    void combine_backward(const model::Operator& op, const Operands& operands, const void* dy,
                          const std::vector<TensorView>& dx) const;
    void* activated_rows(const Operands& operands, const ExpertRows& rows, std::int64_t first_width) const;
    void activate_rows(const model::Operator& op, const ExpertRows& rows, std::int64_t width,
                       const void* first, void* activated) const;
    void experts(model::OperatorId id, const Operands& operands) const;
    void experts_backward(model::OperatorId id, const Operands& operands, const void* dy,
                          const TensorView& dx) const;
    void experts_weights(model::OperatorId id, const Operands& operands, const void* dy,
                         const std::vector<TensorView>& dparameters) const;

    const model::ModelGraph& graph_;
    const schedule::Plan& plan_;
    const model::CostContext context_;
    const int tensor_rank_, context_rank_;
    const bool is_training_;
    Machine& machine_;
    const Kernels& kernels_;
    ExecutionContext& execution_;
    const Type type_, parameter_type_, gradient_type_;
    const std::shared_ptr<const AttentionTables> tables_;
    std::vector<char> is_in_fp8_;  // by operator
    // Both copies of a gradient that the weight's gradient, next in the same instruction, needs too.
    mutable std::optional<std::pair<std::int32_t, const void*>>
        turned_gradient_;  // operator and what was cast
    // Octets that stand where a linear layer in fp8 has those of its input: the layer, and what was cast.
    mutable std::optional<std::pair<std::int32_t, const void*>> cast_input_;
    mutable std::set<std::int32_t> guesses_, refused_;  // linear layers: with a scale to guess by, in bf16
    mutable std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>>
        kept_rows_;  // by experts and micro-batch: rows of each expert
    std::unique_ptr<Fusion> fusion_;
    mutable std::set<KernelChoice> kernel_choices_;
    mutable std::map<std::pair<Fused, FusedShape>, bool> fused_;
    // Attention and micro-batch whose queries and keys have been turned where they lie.
    mutable std::set<std::pair<std::int32_t, std::int32_t>> turned_;
};

}  // namespace exec::cuda
