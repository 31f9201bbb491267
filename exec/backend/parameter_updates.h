// What the end of a step does: gradients are clipped or checked, parameters updated, and the loss is known.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "exec/backend/loss_scaling.h"
#include "exec/tensor_view.h"
#include "exec/transport/communicator.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

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

class ParameterUpdates {
public:
    virtual ~ParameterUpdates() = default;

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
    // Of the last step, before clipping; of plans that clip, where the host knows it.
    virtual std::optional<double> gradient_norm() const { return std::nullopt; }
    // A backend that scales losses is shown all gradients of the rank before the first of them is used: with
    // one that is no finite number on any rank, no rank updates anything.
    virtual bool checks_gradients() const { return false; }
    virtual void check_gradients(const std::vector<UpdateRange>&) {}
    // Of a backend whose losses the rank scales. All ranks have the same.
    virtual std::optional<LossScaling> loss_scaling() const { return std::nullopt; }
    virtual void continue_with(const LossScaling&) {}
};

class StepLoss {
public:
    virtual ~StepLoss() = default;

    // Of the step's loss: the value at `loss` counts with `weight`. Read after end_step.
    virtual void add_loss(ConstTensorView loss, float weight) = 0;
    virtual double loss() = 0;
    virtual void reduce_loss(const schedule::Instruction& instruction, const std::vector<int>& members,
                             Tag tag) = 0;
};

}  // namespace exec
