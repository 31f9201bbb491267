// What a rank's interpreter needs of the hardware it drives: memory, arithmetic, order, clocks and exchange.
// exec/cpu performs every call before it returns; exec/cuda puts it on the stream of the instruction at work
// and returns at once.
//
// Addresses are in the backend's own memory and may mean nothing to the host. Arrays are passed as views,
// which say what their elements are (tensor_view.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data_type.h"
#include "exec/runtime/memory.h"
#include "exec/runtime/offload.h"
#include "exec/runtime/run.h"
#include "exec/tensor_view.h"
#include "exec/transport/communicator.h"
#include "model/segment.h"
#include "schedule/program/program.h"

namespace exec {

using Clock = std::chrono::steady_clock;

// The position of a micro-batch in training: what random masks depend on.
struct MicroBatchPosition {
    std::int64_t step = 0;
    std::int32_t micro_batch = 0;
    std::vector<std::int64_t> samples;  // global numbers
    float loss_weight = 1;              // of the gradient that starts its backward
    std::int32_t segment = 0;           // of the sequence
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
    // in host memory, the weight of its micro-batch.
    virtual void backward_input(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                const std::vector<TensorView>& dx,
                                const MicroBatchPosition& position) const = 0;
    // Adds to the gradients of the parameters.
    virtual void backward_weight(model::OperatorId op, const Operands& operands, ConstTensorView dy,
                                 const std::vector<TensorView>& dparameters) const = 0;

    // Expert parallelism: how many routed tokens a rank has for each expert; the operands are those of
    // `dispatch`. Of backends whose arrays the host reads.
    virtual std::vector<std::int64_t> expert_rows(model::OperatorId dispatch, const Operands& operands) const;
    // Routed tokens before any is dropped, by expert, in fp32 and the backend's memory; the operands are
    // those of `router` in backward.
    virtual void choices(model::OperatorId router, const Operands& operands, TensorView all) const;
    // Keys and values of packed rows [samples, tokens of this rank or segment of a sequence, q k v] as an
    // array of their own, [samples, tokens, 2 kv_heads d]; context parallelism: between such pieces of a
    // group one after the other and rows in the order of the sequence. Elements are as the rank stores
    // activations.
    virtual void pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const;
    virtual void order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const;
    virtual void split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                                     TensorView pieces) const;
    virtual void add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                                   TensorView dpacked) const;  // adds
};

// What a rank updates of one parameter: `count` elements of each array that the plan keeps.
struct UpdateRange {
    model::ParameterId id;
    TensorView parameter;              // in the parameters' precision
    TensorView gradient;               // in the gradients' precision; clipping scales it
    TensorView master, first, second;  // fp32
    std::int64_t count = 0;
    double weight_decay = 0;
    std::int32_t place = 0;  // of the parameter in its bucket
    bool is_counted =
        true;  // in sums over the whole parameter: of ranks with the same values one counts them
};

struct InstructionTime {
    std::uint32_t instruction = 0;
    Clock::time_point start, end;
    core::Seconds on_core;  // of start to end, when the thread had a core; zero where it is not measured
};

class Backend {
public:
    virtual ~Backend() = default;

    virtual std::shared_ptr<BlockSource> blocks() = 0;
    // False for one that only plans: parameters need not be made for it.
    virtual bool keeps_values() const { return true; }
    virtual const OperatorKernels& operators() const = 0;

    // Between begin_step and end_step, in list order: every call belongs to the instruction begun last. A
    // backend that can perform the whole step by itself, as it was performed before, does so in begin_step
    // and says true: then nothing else is called but end_step.
    virtual bool begin_step(std::int64_t step) = 0;
    virtual void begin(std::uint32_t instruction) = 0;
    virtual void end(std::uint32_t instruction) = 0;
    // Waits for the step; appends the times of its instructions, in list order.
    virtual void end_step(std::vector<InstructionTime>& times) = 0;

    // RunOptions::times_operators: from the end of the operator before it (or begin_operators), so that
    // nothing between operators is lost.
    virtual void begin_operators() = 0;
    virtual void end_operator(std::int32_t op, model::Phase phase) = 0;
    virtual std::vector<OperatorSample>& operator_samples() = 0;

    // Arrays. `write` fills host memory with elements of `type` (fp32 or int64) for a step; it may be called
    // again for later steps.
    virtual void fill_zero(void* data, std::size_t bytes) = 0;
    virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
    virtual void accumulate(ConstTensorView x, TensorView y) = 0;  // y += x
    virtual void read_data(Buffer& into, core::DataType type,
                           std::function<void(std::int64_t step, void* host)> write) = 0;
    // For set-up and results, outside steps: fp32 on the host's side, `type` on the backend's.
    virtual void upload(std::span<const float> values, TensorView to) = 0;
    virtual void download(ConstTensorView from, std::span<float> values) = 0;

    // With optimizer.gradient_clipping the gradients are first multiplied, in place, by min(1, limit / (norm
    // + 1e-6)), as torch.nn.utils.clip_grad_norm_ does; the squared norm is the sum of what add_squares saw
    // since the step began and reduce_squares added up. `sums`: of the ranges' bucket, as take_update_norms
    // made them and collectives added them up; null where the optimizer asks for none.
    virtual void update(const schedule::Optimizer& optimizer, std::int64_t step,
                        const std::vector<UpdateRange>& ranges, ConstTensorView sums) = 0;
    // LAMB, before the update of the same ranges: clips gradients as above, advances the moments and writes,
    // in fp32, all `count` sums: for a parameter's `place` the sum of squares of its values at 2 place and
    // that of its update (without the trust ratio) at 2 place + 1, over ranges that are counted.
    virtual void take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                                   const std::vector<UpdateRange>& ranges, TensorView sums) = 0;
    virtual void add_squares(ConstTensorView gradient);
    virtual void reduce_squares(const schedule::Instruction& instruction, const std::vector<int>& members,
                                Tag tag);
    // A backend that scales losses is shown all gradients of the rank before the first of them is used: with
    // one that is no finite number on any rank, no rank updates anything.
    virtual bool checks_gradients() const { return false; }
    virtual void check_gradients(const std::vector<UpdateRange>&) {}

    // Of the step's loss: the value at `loss` counts with `weight`. Read after end_step.
    virtual void add_loss(ConstTensorView loss, float weight) = 0;
    virtual double loss() = 0;

    // Exchange. A send keeps `data` until it is taken. Equal tags on both sides; a collective is in place,
    // `members` in group order, this member's piece of what is gathered or scattered at its position in the
    // group.
    virtual void send(int peer, Tag tag, const BufferPointer& data) = 0;
    virtual void receive(int peer, Tag tag, Buffer& into) = 0;
    virtual void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                            TensorView data, Tag tag) = 0;
    virtual void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                             Tag tag) = 0;
    // Every member's part for every other: `sent` and `received` elements by member, its own included, one
    // after the other in `from` and `to`.
    virtual void exchange(const std::vector<int>& members, ConstTensorView from,
                          const std::vector<std::size_t>& sent, TensorView to,
                          const std::vector<std::size_t>& received, Tag tag);

    // Expert parallelism, before the routed tokens themselves: how many of them are sent and received. The
    // operands are those of `dispatch`.
    struct RoutedTokenCounts {
        std::vector<std::int64_t> own;       // of this rank's tokens, by expert
        std::vector<std::int64_t> received;  // Operands::expert_rows
    };
    virtual RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                              const std::vector<int>& members, Tag tag);
    // Routed tokens to allocate memory for when `came` were received: a backend that plans its memory
    // allocates for more.
    virtual std::int64_t room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const {
        return static_cast<void>(dispatch), came;
    }

    // Where activations wait outside this backend's memory. Calls of the store belong to the instruction
    // begun last, as all others do.
    virtual std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int rank) {
        return exec::make_offload_store(offload, rank);
    }

    // The rank gives up: no array of its step is used any more when this returns. Never throws.
    virtual void settle() {}

    // Time in instructions that compute, by the clock and on a core or device.
    virtual core::Seconds computing() const = 0;
    virtual core::Seconds on_core() const = 0;
    // Memory held beside the arrays: context, libraries, scratch.
    virtual core::Bytes overhead() const { return {}; }
};

struct StagePlan;
class InputReader;

// What a backend may want to know of the run it serves. Everything outlives it.
struct BackendRequest {
    const schedule::Program& program;
    const model::ModelGraph& graph;
    const InputReader& inputs;
    const RunOptions& options;
    Communicator& communicator;
    const model::SegmentGraphs& graphs;  // of what passes at once
    const std::vector<StagePlan>& stage_plans;
    const std::vector<std::string>& activities;  // by instruction of this rank's list
};

}  // namespace exec
