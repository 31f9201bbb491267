// The backend of one rank on a GPU. Calls become launches on the stream of the instruction at work; edges
// become events; the host runs ahead of the device.
//
// A run is planned first: a step is performed on a machine that does nothing, which tells what memory it
// takes (arena.h), what scratch and how much staging. Then one block of device memory is taken, and nothing
// is allocated any more. Steps that repeat can be captured and launched as one CUDA graph: whatever differs
// from step to step (data, keys of random masks, Adam's corrections) is read from staging memory that the
// host fills before the launch.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/cuda/arena.h"
#include "exec/cuda/disk_transfers.h"
#include "exec/cuda/machine.h"
#include "exec/cuda/operator/operators.h"
#include "exec/cuda/pending_zeros.h"

namespace exec::cuda {

// Lists of parameter ranges that one launch goes through.
enum class TableUse : std::uint8_t { update, norm, check, update_norm };
using TableKey = std::pair<std::int32_t, TableUse>;  // bucket (-1: all of them) and use

// What planning learnt.
struct RunPlan {
    ArenaPlan arena;
    MessagePlan messages;
    std::vector<std::uint32_t> host_waits;  // instructions in which the host waits for the device
    std::size_t offloaded = 0;              // most bytes that wait on the host or on disk
    std::size_t transferred = 0;            // of the largest array that does
    std::size_t fetched = 0;                // most numbers that the host asks the device for at a time
    std::map<std::pair<schedule::Stream, int>, std::size_t> scratch;  // bytes by stream and slot
    std::vector<std::size_t> staging;  // bytes of each array of data that a step reads, in order
    struct Table {
        std::size_t ranges = 0;
        std::int64_t chunks = 0;
    };
    std::map<TableKey, Table> tables;
};

struct BackendSettings {
    bool captures_steps = false;  // as a CUDA graph, once two steps have been performed
    bool times_instructions = true;
    double expert_room = 2;  // experts over several ranks: routed tokens that a rank has memory for, as
                             // a multiple of those that come when all experts get as many
    bool rehearses = false;  // a step on zeros, for the sake of what it launches: parameters need not be made
    bool uses_library_masks = false;  // dropout in attention may be the library's own; else it drops what the
                                      // CPU drops, in our own kernel
    bool measures_products =
        false;  // takes the fastest algorithm for each matrix product, not the library's first
};

class CudaBackend : public Backend, public ExecutionContext {
public:
    // Plans when `plan` is null: `machine` then does nothing. What is given by reference outlives the
    // backend.
    CudaBackend(const schedule::Program& program, const model::SegmentGraphs& graphs,
                const RunOptions& options, int rank, std::shared_ptr<Machine> machine,
                std::shared_ptr<Exchange> exchange, std::shared_ptr<const RunPlan> plan,
                const BackendSettings& settings, const std::vector<std::string>& activities);
    ~CudaBackend() override;
    RunPlan planned() const;  // after two steps

    std::shared_ptr<BlockSource> blocks() override { return blocks_; }
    bool keeps_values() const override { return !plans() && !settings_.rehearses; }
    const OperatorKernels& operators() const override;

    bool begin_step(std::int64_t step) override;
    void begin(std::uint32_t instruction) override;
    void end(std::uint32_t instruction) override;
    void end_step(std::vector<InstructionTime>& times) override;

    void begin_operators() override;
    void end_operator(std::int32_t op, model::Phase phase) override;
    std::vector<OperatorSample>& operator_samples() override { return operator_samples_; }

    void fill_zero(void* data, std::size_t bytes) override;
    void copy(void* to, const void* from, std::size_t bytes) override;
    void accumulate(ConstTensorView x, TensorView y) override;
    void read_data(Buffer& into, core::DataType type,
                   std::function<void(std::int64_t step, void* host)> write) override;
    void upload(std::span<const float> values, TensorView to) override;
    void download(ConstTensorView from, std::span<float> values) override;
    void update(const schedule::Optimizer& optimizer, std::int64_t step,
                const std::vector<UpdateRange>& ranges, ConstTensorView sums) override;
    void take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                           const std::vector<UpdateRange>& ranges, TensorView sums) override;
    void add_squares(ConstTensorView gradient) override;
    void reduce_squares(const schedule::Instruction& instruction, const std::vector<int>& members,
                        Tag tag) override;
    bool checks_gradients() const override { return scales_loss(); }
    void check_gradients(const std::vector<UpdateRange>& ranges) override;
    void add_loss(ConstTensorView loss, float weight) override;
    double loss() override { return loss_; }
    void send(int peer, Tag tag, const BufferPointer& data) override;
    void receive(int peer, Tag tag, Buffer& into) override;
    void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                    TensorView data, Tag tag) override;
    void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                     Tag tag) override;
    void exchange(const std::vector<int>& members, ConstTensorView from, const std::vector<std::size_t>& sent,
                  TensorView to, const std::vector<std::size_t>& received, Tag tag) override;
    RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                      const std::vector<int>& members, Tag tag) override;
    std::int64_t room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const override;
    std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int rank) override;
    void settle() override;
    core::Seconds computing() const override { return computing_; }
    core::Seconds on_core() const override { return computing_; }
    core::Bytes overhead() const override;

    Stream stream() override;
    void* scratch(int slot, std::size_t bytes) override;
    bool takes_over_zeros(void* data, std::size_t bytes) override;
    void clear_zeros(void* data, std::size_t bytes) override;
    void reads(const void* data) override { read(data); }
    void writes(void* data) override { write(data); }
    bool keeps_gradients() const override {
        return instruction().phase == schedule::ComputePhase::backward_input;
    }
    const std::uint64_t* mask_keys(model::OperatorId op, std::int32_t micro_batch) override;
    const std::uint64_t* library_offset() override;
    const StepFactors* factors() override { return factors_; }
    std::vector<float> fetch(const float* from, std::size_t count) override;

private:
    class WatchedOperators;
    class Store;
    bool plans() const { return plan_ == nullptr; }
    Stream stream_of(int lane) const;
    Operators& operators_at_work() const;
    int lane(std::uint32_t instruction) const { return lanes_.of[instruction]; }
    const schedule::Instruction& instruction() const { return list_.instructions[instruction_]; }
    void read(const void* address);
    void write(void* address);
    void clear(const std::vector<PendingZeros::Piece>& pieces);
    bool is_last_instruction() const { return instruction_ + 1 == list_.instructions.size(); }
    void make_groups();
    int group_of(const std::vector<int>& members) const;
    int channel_to(int peer, bool sends) const;
    void take_memory();
    void take_offload_memory();
    void check_disk() const;
    // The Program's streams and channels, and one for the disk.
    int stream_count() const { return lanes_.count + (disk_ ? 1 : 0); }
    void fill_step_block(std::int64_t step);
    bool scales_loss() const;
    float initial_loss_scale() const;
    void count_squares();
    void clear_gradient(const ConstTensorView& gradient);
    void adapt_loss_scale();
    struct RangeTable {
        DeviceRange* ranges = nullptr;
        UpdateChunk* chunks = nullptr;
        std::int64_t chunk_count = 0;
        bool is_filled = false;
    };
    const RangeTable* table_of(TableUse use, const std::vector<UpdateRange>& ranges);
    void agree_on_gradients();
    float* bad() const { return norms_ + 1; }
    float* squares() const { return norms_ + 2; }
    void wait_for(Event event);  // in vain: gives up

    const schedule::Program& program_;
    const model::ModelGraph& graph_;
    const RunOptions& options_;
    const int rank_;
    const schedule::RankProgram& list_;
    const MessagePlan messages_;
    const Lanes lanes_;
    const std::shared_ptr<Machine> machine_keeper_;
    const std::shared_ptr<Exchange> exchange_keeper_;
    Machine& machine_;
    Exchange& exchange_;
    const std::shared_ptr<const RunPlan> plan_;
    const BackendSettings settings_;
    const std::vector<std::string>& activities_;
    std::vector<std::unique_ptr<Operators>> operators_;  // by segment of sequences
    std::unique_ptr<WatchedOperators> watched_;
    RunPlan learnt_;
    std::shared_ptr<ArenaPlanner> planner_;
    std::shared_ptr<ArenaBlocks> arena_;
    std::shared_ptr<BlockSource> blocks_;

    // Device memory beside the arena, in one block with it.
    char* memory_ = nullptr;
    std::map<std::pair<schedule::Stream, int>, void*> scratch_;
    char* staging_ = nullptr;     // host
    std::size_t reads_done_ = 0;  // of this step
    char* offloaded_ = nullptr;   // host
    std::unique_ptr<DiskTransfers> disk_;
    float* fetched_ = nullptr;  // host
    Event fetch_event_ = nullptr;
    std::vector<std::size_t> staging_offsets_;
    std::size_t step_block_bytes_ = 0;
    char* device_block_ = nullptr;
    struct DataRead {
        std::function<void(std::int64_t step, void* host)> write;
        void* host = nullptr;
        std::size_t bytes = 0;
        // The data of step `ahead_of`, read while the step before it runs.
        std::vector<char> ahead = {};
        std::optional<std::int64_t> ahead_of = {};
    };
    void fill(const DataRead& read) const;
    std::vector<DataRead> reads_;  // of a step, in order: the same in every step
    // The step block, on both sides: factors of every update, and keys.
    std::size_t keys_offset_ = 0;
    StepFactors* factors_ = nullptr;
    const StepFactors* factors_of_update() const;
    std::uint64_t* keys_ = nullptr;
    char* step_block_ = nullptr;  // host
    // What a step tells the host: the loss; and of the gradients the sum of squares and whether one is no
    // number, first of all, then as counted for clipping.
    static constexpr std::size_t norm_count = 4;
    float *loss_sum_ = nullptr, *norms_ = nullptr;
    float *loss_host_ = nullptr, *norms_host_ = nullptr;
    std::vector<std::int32_t> dropping_;           // operators that drop, ascending
    std::map<std::int32_t, std::size_t> key_row_;  // by operator
    std::map<TableKey, RangeTable> tables_;
    std::vector<UpdateRange> counted_;  // by add_squares, in the instruction at work
    float* norm_partials_ = nullptr;

    std::vector<int> all_ranks_;  // the group in which all ranks decide together
    bool has_agreed_ = false;     // in this step
    std::map<std::vector<int>, int> groups_;
    struct Channel {
        int from = 0, to = 0;
        schedule::PayloadKind payload = schedule::PayloadKind::none;
        std::optional<std::int32_t> boundary = {};  // between stages; nothing: any
        auto operator<=>(const Channel&) const = default;
    };
    std::map<Channel, int> channels_;
    bool is_boundary_apart_ = false;

    PendingZeros pending_zeros_;   // of the instruction at work
    PendingZeros gradient_zeros_;  // of this step: what the gradients of parameters begin with
    std::uint32_t instruction_ = 0;
    std::int64_t step_ = 0;
    bool has_begun_ = false;                     // the first step; false while parameters are made
    int performed_ = 0;                          // steps
    std::vector<Event> begins_, ends_, orders_;  // by instruction; orders_ where another lane waits for it
    Event step_begin_ = nullptr;
    std::vector<Event> stream_ends_;  // by lane
    // What is being sent, with the instruction from which on it surely has been taken.
    std::vector<std::pair<std::uint32_t, BufferPointer>> on_their_way_;
    Clock::time_point host_begin_;
    bool is_capturing_ = false, is_captured_ = false, is_replayed_ = false;
    double loss_ = 0;
    float loss_scale_ = 1;
    std::int64_t good_steps_ = 0, updates_left_out_ = 0;
    core::Seconds computing_;
    std::vector<Event> operator_events_;
    struct OperatorMark {
        std::optional<std::int32_t> op = {};  // nothing: where the first operator begins
        model::Phase phase = model::Phase::forward;
    };
    std::vector<OperatorMark> operator_marks_;
    std::vector<OperatorSample> operator_samples_;
};

}  // namespace exec::cuda
