// A Program: the work of every rank, complete and immutable, without times. Simulator and executor both read
// it.
//
// One instruction list per class of ranks (ranks that do the same work: one class per pipeline coordinate, or
// finer) and a map rank -> class. Instructions sit on named streams; an instruction starts when the one
// before it on its stream and all in its `after` list have ended. The list order of a class is itself a valid
// serial order: a backend with one stream performs it top to bottom with buffered sends and never deadlocks
// (verify.h proves it).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/index/integers.h"
#include "core/optional_index.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/plan/layout.h"
#include "schedule/plan/plan.h"

namespace schedule {

enum class Stream : std::uint8_t { compute, tensor, pipeline_send, pipeline_receive, data, copy };
inline constexpr int stream_count = 6;
std::string_view name_of(Stream stream);

enum class InstructionKind : std::uint8_t {
    compute,         // operators of a range, in one phase, for one micro-batch
    send,            // to pipeline rank `peer` (same data and tensor coordinate)
    receive,         // from pipeline rank `peer`
    collective,      // over `group`
    optimizer_step,  // update of the parameters of `bucket` (absent: all of this rank's), on this rank's
                     // shard of them; asynchronous: the `micro_batch`-th of the step
    zero_gradients,  // start of a step
    copy,  // tensors that the operators of a range saved for the backward of a micro-batch: out to the plan's
           // offload target, or back (`loads`); of an optimizer on the host, what this rank updates of
           // `bucket`: its gradient out, its parameters back; where these stay there, they come before
           // each gather
    gradient_norm,  // sum of squares of the gradients that this rank counts. Replicated parameters are
                    // counted by tensor rank 0, tied ones by their first pipeline rank. Collectives with
                    // payload gradient_norm add the sums up; the updates scale gradients by the result
    update_norm,    // LAMB, before the optimizer_step of the same bucket and update: advances the moments of
                  // this rank's shard and takes, of each parameter of the bucket, the sums of squares of what
                  // this rank counts of its values and of its update (of parameters replicated over the
                  // tensor group tensor rank 0 does); collectives with payload update_norm add them up
};

enum class ComputePhase : std::uint8_t { forward, recompute, backward, backward_input, backward_weight };

// rotate: every member's payload goes to the member after it; of gradients the other way round.
enum class CollectiveKind : std::uint8_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    broadcast,
    all_to_all,
    rotate
};
std::string_view name_of(CollectiveKind kind);

// What a communication carries.
enum class PayloadKind : std::uint8_t {
    none,
    activation,           // tensors `tensors` of micro-batch `micro_batch`
    activation_gradient,  // gradients of them
    parameter_gradient,   // flat gradient of parameter bucket `bucket`
    parameter,            // flat values of parameter bucket `bucket`
    loss,                 // one fp32 scalar
    gradient_norm,        // one fp32 scalar
    update_norm,  // two fp32 scalars for each parameter of bucket `bucket`: sums of squares of its values and
                  // of its update
};

enum class MemoryKind : std::uint8_t {
    parameters,
    gradients,
    optimizer,
    activations,
    workspace,
    communication,
    overhead
};
inline constexpr int memory_kind_count = 7;
std::string_view name_of(MemoryKind kind);
std::string_view name_of(InstructionKind kind);
std::string_view name_of(ComputePhase phase);
std::string_view name_of(PayloadKind kind);

// A piece of memory with a size; allocated and freed by instructions, or persistent (held from start to end).
struct Buffer {
    MemoryKind kind = MemoryKind::activations;
    core::Bytes bytes;
    bool is_persistent = false;
};

// Parameters handled together: one flat array (padded to a multiple of the shard degree), reduced, gathered
// and updated as one.
struct ParameterBucket {
    std::vector<model::ParameterId> parameters;  // in flat order
    std::vector<std::int64_t> offsets;           // of each, in elements
    std::int64_t elements = 0;                   // without padding, on one tensor-parallel rank
    std::int64_t padded_elements = 0;            // multiple of the shard degree
    std::int32_t stage = 0;                      // virtual stage (of the last use on this rank)
    bool is_partial_over_tensor =
        false;               // sequence parallelism: each tensor rank has the gradient of its tokens only
    int pieces = 1;          // into which its state is divided: the shard degree, or less for experts
    bool is_expert = false;  // its parameters are those of this rank's experts only
    std::vector<std::int32_t> tied_ranks;  // pipeline coordinates that hold a copy of this (one-parameter)
                                           // bucket, ascending; empty = only this rank
    // On hosts (Plan::parameter_offload): its gradient goes there with every pass that makes it and adds up
    // there, as nothing of it is left to be reduced once a step.
    bool sums_on_host = false;
};

struct Instruction {
    InstructionKind kind = InstructionKind::compute;
    Stream stream = Stream::compute;
    ComputePhase phase = ComputePhase::forward;
    CollectiveKind collective = CollectiveKind::all_reduce;
    GroupKind group = GroupKind::world;
    PayloadKind payload = PayloadKind::none;
    // Which share of the rows of a product, or of its exchange, this is (pieces.h); of a ring, whose tokens
    // an attention is to (model::passes_keys), and what passes on beside that. Of a backward pass the share
    // `pieces` is the gradient of weights.
    std::uint8_t piece = 0, pieces = 1;
    std::int32_t stage = -1;  // virtual stage
    std::int32_t micro_batch = -1;
    model::OperatorRange operators;  // compute
    core::OptionalIndex bucket{};    // into RankProgram::buckets
    bool loads = false;              // copy
    bool on_shard = false;           // parameter_gradient: of this rank's piece of the bucket (after its
                                     // reduce_scatter), not of the full vector
    bool starts_early = false;       // of a part of a joined instruction: with the part before it
    core::OptionalIndex peer{};      // pipeline coordinate
    core::OptionalIndex tensors{};   // into Program::tensor_lists
    // send: message; all_reduce, reduce_scatter: the full vector each member holds; all_gather: the full
    // result; all_to_all and rotate: the bytes that each member sends in all
    core::Bytes bytes;
    // Compute that stands for several instructions of its pass, each of which starts when those before it
    // have ended (LowerOptions::joins_passes): into RankProgram::parts. It is neither verified nor performed.
    std::uint32_t parts_begin = 0, parts_count = 0;
    std::uint32_t after_begin = 0, after_count = 0;  // into RankProgram::after_pool: indices of instructions
                                                     // of the same list, all smaller than this one's
    std::uint32_t allocate_begin = 0,
                  allocate_count = 0;  // into RankProgram::buffer_pool: buffers taken at the start
    std::uint32_t free_begin = 0, free_count = 0;  // ... given back at the end
};

// Lists of large plans have millions of them.
static_assert(sizeof(Instruction) <= 80);

// Of an operator in pieces, what a backward pass computes after all of them.
inline bool is_of_weights(const Instruction& i) { return i.pieces > 1 && i.piece == i.pieces; }
inline bool is_last_piece(const Instruction& i) { return i.piece + 1 == i.pieces; }
inline bool is_joined(const Instruction& i) { return i.parts_count > 0; }

struct RankProgram {
    int pipeline = 0;  // coordinate of the class
    std::vector<Instruction> instructions;
    std::vector<std::uint32_t> after_pool;
    std::vector<std::uint32_t> buffer_pool;
    std::vector<Buffer> buffers;
    std::vector<ParameterBucket> buckets;
    std::vector<Instruction> parts;  // of joined instructions; alike passes share theirs

    std::span<const Instruction> parts_of(const Instruction& i) const {
        return {parts.data() + i.parts_begin, i.parts_count};
    }
    std::span<const std::uint32_t> after(const Instruction& i) const {
        return {after_pool.data() + i.after_begin, i.after_count};
    }
    std::span<const std::uint32_t> allocates(const Instruction& i) const {
        return {buffer_pool.data() + i.allocate_begin, i.allocate_count};
    }
    std::span<const std::uint32_t> frees(const Instruction& i) const {
        return {buffer_pool.data() + i.free_begin, i.free_count};
    }
};

// Bidirectional schedules run several copies of the model: stage s of direction d is virtual stage d * S + s
// (S stages a direction).
struct StageInfo {
    int rank = 0;  // pipeline coordinate it lives on
    model::OperatorRange operators;
    // Tensor list that comes from the stage before. It relays tensors that only later stages consume.
    core::OptionalIndex receives{};
    core::OptionalIndex sends{};  // tensor list that goes to the stage after
};

struct Program {
    Plan plan;
    std::string model_hash;  // of the graph it was lowered from; empty without operators
    int micro_batches = 1;   // lowered (a planner may lower fewer than the plan's and extrapolate)
    // Segments of a sequence that pass through the pipeline one by one (Seq1F1B). With several, "micro-batch"
    // k of this Program, of its instructions and of everything that counts them is segment k % segments of
    // micro-batch k / segments of the plan, and `micro_batches` counts segments.
    int segments = 1;
    int directions = 1;  // copies of the model; the d-th takes micro-batches d m / directions ... (d + 1) m /
                         // directions - 1
    // Asynchronous schedules: a stage updates its parameters after the backward of every so many
    // micro-batches, and a micro-batch runs backward on the parameters that its forward began with. 0 = one
    // update at the end of the step.
    int micro_batches_per_update = 0;
    std::vector<StageInfo> stages;  // by virtual stage
    std::vector<RankProgram> classes;
    std::vector<std::int32_t> class_of_rank;  // size = layout.ranks()
    std::vector<std::vector<model::TensorId>> tensor_lists;

    std::int32_t stages_per_direction() const { return core::count_of(stages) / directions; }
    bool is_first_stage(std::int32_t stage) const { return stage % stages_per_direction() == 0; }
    bool is_last_stage(std::int32_t stage) const { return (stage + 1) % stages_per_direction() == 0; }
    // Of a number in `micro_batches`: which part of its sequences it is, and which of the plan's
    // micro-batches.
    int segment_of(std::int32_t micro_batch) const { return micro_batch % segments; }
    int whole_micro_batch_of(std::int32_t micro_batch) const { return micro_batch / segments; }
    bool is_last_segment(std::int32_t micro_batch) const { return segment_of(micro_batch) + 1 == segments; }
    bool cuts_sequences() const { return segments > 1; }
    // Micro-batches of the plan, each with whole sequences, and how often each passes a stage.
    int whole_micro_batches() const { return micro_batches / segments; }
    int passes_per_micro_batch() const { return segments; }
    // Passes of a stage differ by the part of the sequence: where a table of what is alike has this one's
    // row.
    std::size_t row_of(std::int32_t stage, std::int32_t micro_batch) const {
        return std::size_t{1} * stage * segments + segment_of(micro_batch);
    }
    // Micro-batches that pass through a stage.
    std::int32_t micro_batches_of_stage() const { return micro_batches / directions; }
    std::int32_t first_micro_batch(std::int32_t stage) const {
        return stage / stages_per_direction() * micro_batches_of_stage();
    }
    int updates() const {
        return micro_batches_per_update == 0
                   ? 1
                   : (micro_batches + micro_batches_per_update - 1) / micro_batches_per_update;
    }
    // Micro-batches whose mean one update takes.
    int micro_batches_of_update(std::int32_t micro_batch) const {
        if (micro_batches_per_update == 0) return micro_batches;
        const int first = micro_batch / micro_batches_per_update * micro_batches_per_update;
        return micro_batches - first < micro_batches_per_update ? micro_batches - first
                                                                : micro_batches_per_update;
    }
};

// Over which ranks a bucket's gradient is added up: all members that have its parameters, or its shards and
// then the replicas of a shard.
struct BucketGroups {
    GroupKind members = GroupKind::data, shard = GroupKind::shard, replica = GroupKind::replica;
    int size = 1;  // members
};
BucketGroups groups_of(const ParallelLayout& layout, const ParameterBucket& bucket);

// Over which groups the parameters of a bucket, or their state, are divided: sums over a whole parameter are
// added up over these, one after the other.
std::vector<GroupKind> dividing_groups(const Plan& plan, const ParameterBucket& bucket);
// Size of a message of PayloadKind::update_norm.
inline core::Bytes update_norm_bytes(const ParameterBucket& bucket) {
    return 2.0 * core::size_of(core::DataType::fp32) * bucket.parameters.size();
}

// Is there a backward pass? Without one the Program evaluates: nothing is dropped and nothing updated.
bool trains(const Program& program);

// Global ranks that take part in a collective instruction of `rank`'s class, in group order (the position is
// the group rank).
std::vector<int> members_of(const Program& program, int rank, const Instruction& instruction);

// The graph of each part of a micro-batch's sequences that passes at once; one, the given one, where
// sequences pass whole. `graph` outlives them.
model::SegmentGraphs segment_graphs(const Program& program, const model::ModelGraph& graph);

// Of each virtual stage.
std::vector<model::OperatorRange> operators_of_stages(const Program& program);

// "3", or "3.1": segment 1 of micro-batch 3.
std::string micro_batch_text(const Program& program, std::int32_t micro_batch);

// "12 compute F2 stage 1 ops [40, 52)" — one line, for verify's grid, traces and tests.
std::string describe(const Program& program, int class_index, std::uint32_t instruction);
// Equal on every rank exactly when the ranks would run the same Program (16 hexadecimal digits).
std::string hash_of(const Program& program);

}  // namespace schedule
