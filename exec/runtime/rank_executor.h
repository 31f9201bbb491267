// One rank at work: its instructions in list order, on its tensors and buckets, with what it measures.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/data.h"
#include "exec/evaluation/evaluation_list.h"
#include "exec/runtime/bucket_state.h"
#include "exec/runtime/memory.h"
#include "exec/runtime/offload.h"
#include "exec/runtime/run.h"
#include "exec/runtime/stage_plan.h"
#include "exec/transport/collective.h"
#include "model/operators/rank_share.h"
#include "schedule/program/pieces.h"

namespace exec {

class RankExecutor {
public:
    // `graphs` of what passes at once, `stage_plans` by Program::row_of; everything given outlives the
    // executor.
    RankExecutor(const schedule::Program& program, const model::SegmentGraphs& graphs,
                 const InputReader& inputs, const RunOptions& options, int rank, Backend& backend,
                 const std::vector<StagePlan>& stage_plans);

    // The mean loss over so many global batches of held-out data, whose first samples they are; nothing on
    // ranks without the last stage. All ranks call between steps. The rank's own list is performed without
    // what only training does: no backward, no exchange of gradients, no update; nothing is dropped, and no
    // value that a later step reads changes. `plans`: by Program::row_of, of stages that go forward only.
    std::optional<double> evaluate(const InputReader& data, int batches, const std::vector<StagePlan>& plans);

    // One step; its instruction times are appended to `times`.
    void step(std::int64_t step, std::vector<InstructionTime>& times);
    // The step's loss as this rank knows it; nothing on ranks without the last stage.
    std::optional<double> loss() const { return loss_; }
    MemoryAccount& memory() { return *account_; }
    std::vector<BucketState>& buckets() { return buckets_; }
    ParameterShare share() const { return share_of(program_.plan.layout, coordinates_); }
    // Most that waited outside the rank's memory (offload).
    core::Bytes offloaded_peak() const {
        return (offload_ ? offload_->peak() : core::Bytes(0)) + (host_ ? host_->peak() : core::Bytes(0));
    }

private:
    // Routed tokens sent to other ranks' experts and received from other ranks, by member of the group.
    struct ExpertExchange {
        std::vector<std::size_t> sent, received;  // elements
        std::vector<std::int64_t> rows;           // Operands::expert_rows
        std::size_t room = 0;                     // elements, at least what was received
    };
    // An array that is offloaded: a tensor's, or an operator's saved context.
    struct OffloadedArray {
        bool is_saved_context = false;
        std::int32_t index = 0;  // of the operator relative to the stage, or of the storage
        std::size_t bytes = 0;
        std::int32_t unit = 0;  // its first operator
        OffloadStore::Handle handle = 0;
    };
    // Keys and values that pass from rank to rank, while an attention is in pieces: those of the piece, and
    // those of the next; in backward their gradients.
    struct Ring {
        BufferPointer keys, next, gradients;
    };
    // Tensors of one micro-batch in one virtual stage, by storage; contexts and kept gradients by operator
    // relative to the stage.
    struct MicroBatch {
        core::IndexedVector<model::TensorId, BufferPointer> tensors, gradients;
        std::vector<BufferPointer> saved_contexts, late_contexts, kept_gradients;
        // By attention operator, for other parts of the sequence: keys and values of a unit that will run
        // again, and what later parts leave as their gradient.
        std::vector<BufferPointer> key_values, key_value_gradients;
        bool has_forward_input = false, has_backward_input = false;
        std::vector<BucketState::Version>
            weights;  // by bucket: the version that the micro-batch began with, in an asynchronous schedule
        float loss_weight = 1;  // of the gradient that starts its backward
        MicroBatchPosition position;
        std::map<std::int32_t, ExpertExchange> exchanges;  // by dispatch
        std::map<std::int32_t, BufferPointer> keys,
            key_gradients;                // by attention: of a context-parallel group
        std::set<std::int32_t> by_heads;  // attentions between their exchanges of heads
        std::map<std::int32_t, Ring> rings;
        std::vector<OffloadedArray> offloaded;
    };

    void perform(const schedule::Instruction& instruction);
    void perform_evaluation();
    void check_gradients();
    std::vector<UpdateRange> updates_of(const schedule::Instruction& instruction);
    // Of all updates since training began, by the optimizer's count.
    std::int64_t number_of_update(const schedule::Instruction& instruction) const {
        return step_ * program_.updates() + std::max(0, instruction.micro_batch);
    }
    void compute(const schedule::Instruction& instruction);
    void forward(MicroBatch& state, const schedule::Instruction& instruction);
    void make_saved_context(MicroBatch& state, const StagePlan& plan, std::int32_t op, bool is_again);
    void make_late_context(MicroBatch& state, const StagePlan& plan, std::int32_t op,
                           schedule::MemoryKind kind);
    std::size_t own_bytes(const MicroBatch& state, const model::Operator& op, std::size_t planned) const;
    void backward(MicroBatch& state, const schedule::Instruction& instruction);
    void backward_operator(MicroBatch& state, std::int32_t stage, std::int32_t op,
                           schedule::ComputePhase phase);
    void finish_forward(MicroBatch& state, const StagePlan& plan, std::int32_t op, bool is_again);
    void finish_backward(MicroBatch& state, const StagePlan& plan, std::int32_t op,
                         schedule::ComputePhase phase);
    ConstTensorView parameter(const MicroBatch& state, model::ParameterId id);
    TensorView parameter_gradient(model::ParameterId id);
    void send(const schedule::Instruction& instruction);
    void receive(const schedule::Instruction& instruction);
    void collective(const schedule::Instruction& instruction);
    void activation_collective(const schedule::Instruction& instruction);
    void tensor_collective(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void tensor_gradient_collective(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    TensorView tensor_piece(const TensorView& whole) const;
    // Of a product in pieces: where this one's rows lie; `exchanged` is its result, or its input whose
    // gradient it computes.
    schedule::PieceRows rows_of(const schedule::Instruction& instruction, model::TensorId exchanged) const;
    void forward_piece(MicroBatch& state, const schedule::Instruction& instruction);
    void backward_piece(MicroBatch& state, const schedule::Instruction& instruction);
    void exchange_forward_piece(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void exchange_backward_piece(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void exchange_piece(const schedule::Instruction& instruction, const TensorView& whole,
                        model::TensorId exchanged, Tag tag);
    // Of every piece this rank's rows, where they were summed and where they belong.
    void for_each_own_piece(
        const schedule::Instruction& instruction, const TensorView& whole, const TensorView& share,
        model::TensorId exchanged,
        const std::function<void(const TensorView& from, const TensorView& to)>& visit) const;
    void bucket_collective(const schedule::Instruction& instruction);
    void exchange_routed_tokens(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    // Keys and values of a context-parallel group, or the projection of a tensor-parallel one, and this
    // rank's among them.
    struct KeyPieces {
        TensorView all, own;
    };
    KeyPieces key_pieces(Buffer& all) const;
    void gather_keys(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void scatter_key_gradients(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void exchange_heads(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    // What the attention made before its heads were exchanged: the end of its saved context.
    TensorView exchanged_output(MicroBatch& state, const StagePlan& plan, std::int32_t op) const;
    void rotate_keys(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void attend_piece(MicroBatch& state, const schedule::Instruction& instruction);
    void attend_piece_backward(MicroBatch& state, const schedule::Instruction& instruction);
    // Is this a piece of an attention in a ring?
    bool passes_keys(const schedule::Instruction& instruction) const {
        return instruction.pieces > 1 && !schedule::is_of_weights(instruction) &&
               model::passes_keys(graph_.operators[instruction.operators.begin], context_);
    }
    // Place of this rank in its context-parallel group.
    int context_rank() const;
    void sum_choices(const schedule::Instruction& instruction, MicroBatch& state, Tag tag);
    void copy(const schedule::Instruction& instruction);
    // Of a mixture's operators the dispatch.
    std::int32_t dispatch_of(const model::Operator& op) const;
    std::size_t activation_bytes(std::size_t elements) const {
        return elements * core::bytes_per_element(context_.compute);
    }
    bool has_exchanged_experts(const model::Operator& op) const {
        return context_.expert_parallel > 1 && op.kind == model::OperatorKind::experts;
    }
    void reduce(const schedule::Instruction& instruction, TensorView data, Tag tag);

    MicroBatch& micro_batch(std::int32_t stage, std::int32_t micro_batch);
    void take_over_activations(std::int32_t stage, std::int32_t micro_batch);
    void take_over_gradients(std::int32_t stage, std::int32_t micro_batch);
    const StagePlan& plan_of(std::int32_t stage, std::int32_t micro_batch) const {
        return (*pass_.stage_plans)[program_.row_of(stage, micro_batch)];
    }
    void add_earlier_keys(const MicroBatch& state, std::int32_t stage, std::int32_t op, bool with_gradients,
                          Operands& operands);
    void keep_key_values(MicroBatch& state, const StagePlan& plan, std::int32_t op);
    bool is_here(std::int32_t stage) const;
    std::size_t bytes(model::TensorId tensor) const;
    core::DataType type_of(model::TensorId tensor) const;
    BufferPointer& tensor(MicroBatch& state, const StagePlan& plan, model::TensorId id);  // made when absent
    BufferPointer& gradient(MicroBatch& state, const StagePlan& plan,
                            model::TensorId id);  // made of zeros when absent, or the values' own array
    void read_input(MicroBatch& state, const StagePlan& plan, model::TensorId id);
    // Of an operator's input, output or their gradients.
    TensorShape shape_of(const MicroBatch& state, const model::Operator& op, model::TensorId id) const;
    TensorView view_of(const MicroBatch& state, const model::Operator& op, model::TensorId id,
                       const BufferPointer& buffer) const;
    Operands operands(MicroBatch& state, std::int32_t stage, std::int32_t op);
    int peer_rank(std::int32_t pipeline) const;

    const schedule::Program& program_;
    const model::ModelGraph& graph_;  // the first: all have tensors of one size
    const model::CostContext context_;
    const RunOptions& options_;
    const int rank_;
    Backend& backend_;
    // What passes through the stages: a step's samples, or held-out ones.
    struct Pass {
        const InputReader* inputs = nullptr;
        const std::vector<StagePlan>* stage_plans = nullptr;
        std::int64_t sample_offset = 0;
        bool is_training = true;
    };
    Pass pass_;
    const schedule::RankProgram& list_;
    const schedule::RankCoordinates coordinates_;
    std::shared_ptr<MemoryAccount> account_, host_;  // host_: of an optimizer there, else null

    std::vector<BucketState> buckets_;
    struct ParameterPosition {
        std::int32_t bucket = 0;
        std::int64_t offset = 0;
    };
    // Nothing for parameters of other ranks.
    core::IndexedVector<model::ParameterId, std::optional<ParameterPosition>> parameter_positions_;
    BucketOfParameter bucket_of_;
    std::vector<std::vector<std::int32_t>>
        releases_;  // by instruction: buckets whose gathered parameters go after it
    std::optional<EvaluationList> evaluation_;  // made by the first evaluation
    std::vector<std::vector<MicroBatch>>
        micro_batches_;  // [stage][micro-batch]; a segment of a sequence is a micro-batch of its own
    std::int64_t step_ = 0;
    float loss_weight_ = 1;
    bool has_checked_ = false;  // the gradients of this step
    std::optional<double> loss_;
    const std::unique_ptr<OffloadStore> offload_;
    core::IndexedVector<model::TensorId, TensorShape> shapes_;  // on this rank
};

}  // namespace exec
