// The backend of one rank on a processor: every call is done when it returns, in this thread, on host memory.
// Arithmetic is in fp32; arrays of a plan in bf16 or fp16 are stored in it. With RunOptions::overlaps the
// data stream's instructions are left to a second thread; an instruction that touches what they work on waits
// for them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/unsupported.h"
#include "exec/backend.h"
#include "exec/cpu/operators.h"
#include "exec/cpu/side_stream.h"

namespace exec::cpu {

class CpuBackend : public Backend {
public:
    // `graphs` of what passes at once; `activities` by instruction of this rank's list; everything
    // given outlives the backend.
    CpuBackend(const schedule::Program& program, const model::SegmentGraphs& graphs,
               const RunOptions& options, Communicator& communicator,
               const std::vector<std::string>& activities);

    std::shared_ptr<BlockSource> blocks() override { return blocks_; }
    const OperatorKernels& operators() const override { return *operators_; }

    bool begin_step(std::int64_t step) override;
    bool begin_evaluation(std::int64_t batch) override;
    void begin(std::uint32_t instruction) override;
    void end(std::uint32_t instruction) override;
    void end_step(std::vector<InstructionTime>& times) override;

    void settle() override;

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
                const std::vector<UpdateRange>& ranges, ConstTensorView sums) override;
    void take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                           const std::vector<UpdateRange>& ranges, TensorView sums) override;

    bool checks_gradients() const override { return loss_scaling_.has_value(); }
    void check_gradients(const std::vector<UpdateRange>& ranges) override;
    std::optional<LossScaling> loss_scaling() const override { return loss_scaling_; }
    void continue_with(const LossScaling& scaling) override {
        if (loss_scaling_) loss_scaling_ = scaling;
    }
    std::optional<double> gradient_norm() const override;
    void add_squares(ConstTensorView gradient) override;
    void reduce_squares(const schedule::Instruction& instruction, const std::vector<int>& members,
                        Tag tag) override;

    // Why a plan's number formats cannot be run here.
    static std::optional<core::Unsupported> unsupported(const schedule::Precision& precision);

    void add_loss(ConstTensorView loss, float weight) override {
        const double value = *loss.floats();
        loss_ += value * weight;
    }
    double loss() override { return loss_; }

    void send(int peer, Tag tag, const BufferPointer& data) override;
    void receive(int peer, Tag tag, Buffer& into) override;
    void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                    TensorView data, Tag tag) override;
    void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                     Tag tag) override;

    RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                      const std::vector<int>& members, Tag tag) override;
    void exchange(const std::vector<int>& members, ConstTensorView from, const std::vector<std::size_t>& sent,
                  TensorView to, const std::vector<std::size_t>& received, Tag tag) override;

    core::Seconds computing() const override { return computing_; }
    core::Seconds on_core() const override { return on_core_; }

private:
    // In the thread of the instruction's stream.
    template <class Work>
    void in_stream(Work work) {
        if (is_aside_) side_->add(std::move(work));
        else work();
    }
    float gradient_factor(const schedule::Optimizer& optimizer) const;
    float loss_scale() const { return loss_scaling_ ? loss_scaling_->scale : 1.0f; }
    std::int64_t left_out() const { return loss_scaling_ ? loss_scaling_->left_out : 0; }
    // Does a gradient that is multiplied by this stay so in its array? Without the scale it would leave fp16.
    bool clips(float factor) const { return factor < 1 && !loss_scaling_; }
    void find_needs(const model::ModelGraph& graph);
    void perform_rounds(const schedule::Instruction& instruction, const std::vector<int>& members,
                        TensorView data, Tag tag);

    const schedule::Program& program_;
    const schedule::RankProgram& list_;
    const RunOptions& options_;
    Communicator& communicator_;
    const std::vector<std::string>& activities_;
    const std::unique_ptr<const OperatorKernels> operators_;
    std::optional<LossScaling> loss_scaling_;  // of plans in fp16
    const std::shared_ptr<SideStream> side_;   // null: everything in one thread
    const std::shared_ptr<BlockSource> blocks_;
    bool is_aside_ = false;  // the instruction at work belongs to it
    std::vector<std::vector<std::uint32_t>>
        needs_;  // by instruction: those of the side stream that must be done before it
    std::vector<std::uint64_t> numbers_;  // by instruction of the side stream: its last piece of work
    std::int64_t step_ = 0;
    bool is_evaluating_ = false, has_checked_ = false, is_bad_ = false;  // this step; its gradients
    double loss_ = 0, squares_ = 0;
    std::vector<InstructionTime> times_;
    Clock::time_point operator_begin_;
    std::int32_t operator_segment_ = 0;
    double core_time_ = 0,
           operator_core_time_ = 0;  // of this thread when the instruction and the operator began
    std::vector<OperatorSample> operator_samples_;
    core::Seconds computing_, on_core_;
};

}  // namespace exec::cpu
