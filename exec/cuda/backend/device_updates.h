// The end of a step on the device: norms and checks of gradients, scaled losses, the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "exec/backend/parameter_updates.h"
#include "exec/cuda/backend/device_exchange.h"
#include "exec/cuda/backend/work_context.h"
#include "exec/cuda/machine.h"
#include "exec/cuda/run_plan.h"

namespace exec::cuda {

class DeviceUpdates : public ParameterUpdates, public StepLoss {
public:
    // Everything given outlives it.
    DeviceUpdates(const schedule::Program& program, Machine& machine, DeviceExchange& exchange,
                  WorkContext& work);

    // Lists of ranges in device memory, filled when they are first used.
    struct RangeTable {
        DeviceRange* ranges = nullptr;
        UpdateChunk* chunks = nullptr;
        std::int64_t chunk_count = 0;
        bool is_filled = false;
    };
    // `partials`: of the largest table's chunks, twice.
    void take_tables(std::map<TableKey, RangeTable> tables, float* partials);
    // What a step adds up: `loss` and `norms` on the device, and host memory for both, `host_numbers` long.
    void take_sums(float* loss, float* norms) { loss_sum_ = loss, norms_ = norms; }
    void take_host(float* numbers) { host_ = numbers; }
    static constexpr std::size_t host_numbers = 5;
    const std::map<TableKey, TableSize>& learnt() const { return learnt_; }

    // One for each update of the step.
    std::vector<StepFactors> factors(std::int64_t step) const;
    void begin_step(Stream stream);
    void end_instruction();
    void end_step();               // all ranks have agreed on their gradients
    void download(Stream stream);  // what the step added up
    void finish();                 // ... once it is there

    void update(const schedule::Optimizer& optimizer, std::int64_t step,
                const std::vector<UpdateRange>& ranges, ConstTensorView sums) override;
    void take_update_norms(const schedule::Optimizer& optimizer, std::int64_t step,
                           const std::vector<UpdateRange>& ranges, TensorView sums) override;
    void add_squares(ConstTensorView gradient) override;
    void reduce_squares(const schedule::Instruction& instruction, const std::vector<int>& members,
                        Tag tag) override;
    bool checks_gradients() const override { return scales_loss(program_.plan); }
    void check_gradients(const std::vector<UpdateRange>& ranges) override;
    void add_loss(ConstTensorView loss, float weight) override;
    double loss() override { return loss_; }
    void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                     Tag tag) override;

    // With fp16 gradients of losses are scaled: all ranks leave out an update together.
    static bool scales_loss(const schedule::Plan& plan) {
        return plan.precision.compute == core::DataType::fp16;
    }

private:
    // Of `norms_`: the sum of squares of gradients and whether one is no number, first of all, then the sum
    // as counted for clipping.
    static constexpr std::size_t norm_count = 4;
    float* bad() const { return norms_ + 1; }
    float* squares() const { return norms_ + 2; }

    const RangeTable* table_of(TableUse use, const std::vector<UpdateRange>& ranges);
    const StepFactors* factors_of_update() const;
    void clear_gradient(const ConstTensorView& gradient);
    void count_squares();
    void agree_on_gradients();
    void adapt_loss_scale();

    const schedule::Program& program_;
    Machine& machine_;
    DeviceExchange& exchange_;
    WorkContext& work_;
    std::map<TableKey, RangeTable> tables_;
    std::map<TableKey, TableSize> learnt_;
    float* partials_ = nullptr;
    float *loss_sum_ = nullptr, *norms_ = nullptr, *host_ = nullptr;
    std::vector<UpdateRange> counted_;  // by add_squares, in the instruction at work
    bool has_agreed_ = false;           // in this step
    double loss_ = 0;
    float loss_scale_;
    std::int64_t good_steps_ = 0, updates_left_out_ = 0;
};

}  // namespace exec::cuda
