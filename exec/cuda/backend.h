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
#include "exec/cuda/backend/device_exchange.h"
#include "exec/cuda/backend/device_offload.h"
#include "exec/cuda/backend/device_updates.h"
#include "exec/cuda/backend/pending_zeros.h"
#include "exec/cuda/backend/watched_operators.h"
#include "exec/cuda/backend/work_context.h"
#include "exec/cuda/machine.h"
#include "exec/cuda/operator/operators.h"
#include "exec/cuda/run_plan.h"

namespace exec::cuda {

struct BackendSettings {
    bool captures_steps = false;  // as a CUDA graph, once two steps have been performed
    bool times_instructions = true;
    double expert_room = 2;  // experts over several ranks: routed tokens that a rank has memory for, as
                             // a multiple of those that come when all experts get as many
    bool rehearses = false;  // a step on zeros, for the sake of what it launches: parameters need not be made
    bool uses_library_masks = false;  // dropout in attention may be the library's own; else it drops what the
                                      // CPU drops, in our own kernel
    bool measures_products = false;  // takes the fastest algorithm for each matrix product, not the library's
                                     // first, and fusions only where they are faster
    FusedSet apart = {};             // what is not fused
    int ranks_per_device = 1;  // several share its time: they wait longer, and messages go one at a time
};

// What a rank exchanges, how its step ends and where its activations wait are objects of their own, which ask
// the backend for the instruction at work (work_context.h).
class CudaBackend : public Backend, public WorkContext {
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

    void begin_operators(std::int32_t segment) override;
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
                const std::vector<UpdateRange>& ranges, ConstTensorView sums) override {
        updates_.update(optimizer, step, ranges, sums);
    }
    void take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                           const std::vector<UpdateRange>& ranges, TensorView sums) override {
        updates_.take_update_norms(optimizer, step, ranges, sums);
    }
    void add_squares(ConstTensorView gradient) override { updates_.add_squares(gradient); }
    void reduce_squares(const schedule::Instruction& instruction, const std::vector<int>& members,
                        Tag tag) override {
        updates_.reduce_squares(instruction, members, tag);
    }
    bool checks_gradients() const override { return updates_.checks_gradients(); }
    void check_gradients(const std::vector<UpdateRange>& ranges) override {
        updates_.check_gradients(ranges);
    }
    void add_loss(ConstTensorView loss, float weight) override { updates_.add_loss(loss, weight); }
    double loss() override { return updates_.loss(); }
    void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                     Tag tag) override {
        updates_.reduce_loss(instruction, members, tag);
    }

    void send(int peer, Tag tag, const BufferPointer& data) override { exchanges_.send(peer, tag, data); }
    void receive(int peer, Tag tag, Buffer& into) override { exchanges_.receive(peer, tag, into); }
    void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                    TensorView data, Tag tag) override {
        exchanges_.collective(instruction, members, data, tag);
    }
    void exchange(const std::vector<int>& members, ConstTensorView from, const std::vector<std::size_t>& sent,
                  TensorView to, const std::vector<std::size_t>& received, Tag tag) override {
        exchanges_.exchange(members, from, sent, to, received, tag);
    }
    RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                      const std::vector<int>& members, Tag tag) override {
        return exchanges_.exchange_counts(dispatch, operands, members, tag);
    }
    std::int64_t room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const override {
        return exchanges_.room_for_routed_tokens(dispatch, came);
    }

    std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int) override {
        return offload == schedule::Offload::none ? nullptr : offload_.make_store();
    }
    std::vector<KernelChoice> kernel_choices() const override;
    void settle() override;
    core::Seconds computing() const override { return computing_; }
    core::Seconds on_core() const override { return computing_; }
    core::Bytes overhead() const override;

    Stream stream() override;
    void* scratch(int slot, std::size_t bytes) override;
    void* kept(model::OperatorId op, std::int32_t micro_batch, std::size_t bytes) override;
    bool takes_over_zeros(void* data, std::size_t bytes) override;
    void clear_zeros(void* data, std::size_t bytes) override;
    void reads(const void* data) override;
    void writes(void* data) override;
    void writes_part(void* data, std::size_t bytes) override;
    void overwrites(void* data, std::size_t bytes) override;
    void clear_rest(void* data) override { clear(pending_zeros_.cut_around(data)); }
    const schedule::Instruction& instruction() const override { return list_.instructions[instruction_]; }
    std::uint32_t number() const override { return instruction_; }
    bool plans() const override { return plan_ == nullptr; }
    Operators& operators_at_work() const override;
    bool allows(Fused what) const override { return !settings_.apart.contains(what); }
    bool keeps_gradients() const override {
        return instruction().phase == schedule::ComputePhase::backward_input;
    }
    const std::uint64_t* mask_keys(model::OperatorId op, std::int32_t micro_batch) override;
    const std::uint64_t* library_offset() override;
    const StepFactors* factors() override { return factors_; }
    std::vector<float> fetch(const float* from, std::size_t count) override;

private:
    Stream stream_of(int lane) const;
    int lane(std::uint32_t instruction) const { return lanes_.of[instruction]; }
    void clear(const std::vector<PendingZeros::Piece>& pieces);
    bool is_last_instruction() const { return instruction_ + 1 == list_.instructions.size(); }
    bool captures_steps() const { return settings_.captures_steps && messages_.holds_in_list_order; }
    void take_memory();
    void take_block(std::size_t size);
    void take_host_memory();
    void check_disk() const;
    // The Program's streams and channels, and one for the disk.
    int stream_count() const { return lanes_.count + (offload_.uses_disk() ? 1 : 0); }
    void fill_step_block(std::int64_t step);
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
    const WatchedOperators watched_{graph_, *this};
    DeviceExchange exchanges_;
    DeviceUpdates updates_;
    DeviceOffload offload_;
    RunPlan learnt_;
    std::shared_ptr<ArenaPlanner> planner_;
    std::shared_ptr<ArenaBlocks> arena_;
    std::shared_ptr<BlockSource> blocks_;

    // Device memory beside the arena, in one block with it.
    char* memory_ = nullptr;
    std::map<std::pair<schedule::Stream, int>, void*> scratch_;
    std::map<std::pair<std::int32_t, std::int32_t>, void*> kept_;
    char* staging_ = nullptr;     // host
    std::size_t reads_done_ = 0;  // of this step
    float* fetched_ = nullptr;    // host
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
    std::uint64_t* keys_ = nullptr;
    char* step_block_ = nullptr;                   // host
    std::vector<std::int32_t> dropping_;           // operators that drop, ascending
    std::map<std::int32_t, std::size_t> key_row_;  // by operator

    PendingZeros pending_zeros_;   // of the instruction at work
    PendingZeros gradient_zeros_;  // of this step: what the gradients of parameters begin with
    std::uint32_t instruction_ = 0;
    std::int64_t step_ = 0;
    bool has_begun_ = false;                     // the first step; false while parameters are made
    int performed_ = 0;                          // steps
    std::vector<Event> begins_, ends_, orders_;  // by instruction; orders_ where another lane waits for it
    Event step_begin_ = nullptr;
    std::vector<Event> stream_ends_;  // by lane
    Clock::time_point host_begin_;
    bool is_capturing_ = false, is_captured_ = false, is_replayed_ = false;
    core::Seconds computing_;
    std::vector<Event> operator_events_;
    struct OperatorMark {
        std::optional<std::int32_t> op = {};  // nothing: where the first operator begins
        std::int32_t segment = 0;
        model::Phase phase = model::Phase::forward;
    };
    std::vector<OperatorMark> operator_marks_;
    std::vector<OperatorSample> operator_samples_;
};

}  // namespace exec::cuda
