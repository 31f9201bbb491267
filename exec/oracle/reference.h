// The oracle: one rank, no plan, everything in double precision with loops of its own. Slow and obvious;
// nothing here is shared with the executor but the definitions of data, initial values and random masks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exec/data.h"
#include "exec/runtime/learning_rate.h"
#include "exec/weights/initial_weights.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace exec {

struct ReferenceOptions {
    int steps = 1;
    std::uint64_t seed = 1234;
    bool evaluates = false;  // forward only: nothing dropped, nothing updated
    // Choices of routers between experts whose probabilities differ by less than this are made the other way:
    // what fp32 may make of a near tie.
    double other_way_below = 0;
    std::shared_ptr<const InitialWeights> initial = {};  // null: seeded values
    LearningRateSchedule learning_rate = {};
    std::shared_ptr<const DataSource> held_out = {};  // evaluated with the last parameters; null: none
    int held_out_batches = 1;                         // of the plan's global batch, the first ones
    // Every operator's result, forward and backward, is rounded to so many bits, on a grid that is drawn for
    // each: what rounding does to a training. 0 = as exact as double precision is.
    int rounded_bits = 0;
    std::uint64_t rounding_seed = 1;
};

struct ReferenceResult {
    std::vector<double> losses;                   // by step
    std::vector<double> router_margins;           // by step: the least, over all tokens and mixtures;
                                                  // empty for models without mixtures
                                                  // (oracle::RouterMargins); infinite without mixtures
    std::vector<std::vector<double>> gradients;   // of the last step, by parameter
    std::vector<std::vector<double>> parameters;  // after it
    std::optional<double> held_out_loss;          // with these parameters, mean over the batches
};

// The plan gives the batch (micro-batch, micro-batches, replicas) and the optimizer, nothing else.
ReferenceResult run_reference(const model::ModelGraph& graph, const schedule::Plan& plan,
                              std::shared_ptr<const DataSource> data, const ReferenceOptions& options);

// The same without flush: stage s of p updates its own parameters after the backward of every
// `micro_batches_per_update` micro-batches, and micro-batch k runs on the parameters with which the pipeline
// lets it begin there, that is, after the updates of micro-batches 0 ... k - (p - 1 - s) - 1 (PipeDream,
// arXiv 1806.03377, section 3.3: weight stashing; one micro-batch per update. 2BW, arXiv 2006.09503: as many
// as stages or more). The plan gives the partition.
ReferenceResult run_asynchronous_reference(const model::ModelGraph& graph, const schedule::Plan& plan,
                                           int micro_batches_per_update,
                                           std::shared_ptr<const DataSource> data,
                                           const ReferenceOptions& options);

// By how much the losses of a training may differ, relative and by step, because numbers have so many `bits`
// (24 in fp32): a training may magnify the rounding of one step by its conditioning. A batch norm of few
// values does: its result (x - mean) / sqrt(variance + epsilon) is off by what x is off times
// 1 / sqrt(variance + epsilon), which is large against the result where the values are nearly equal, and the
// next norm magnifies that again. `exact`: the losses of `options` themselves. Three trainings of the
// reference are rounded; what they differ by at most, from the first step to each, is taken a few times.
// Rounding, and no random noise: where values are equal, rounded ones are, and their norm is as small.
std::vector<double> rounding_bounds(const model::ModelGraph& graph, const schedule::Plan& plan,
                                    std::shared_ptr<const DataSource> data, const ReferenceOptions& options,
                                    const std::vector<double>& exact, int bits);

// Largest of |a - b| / max(|b|), over all elements.
double relative_difference(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace exec
