// Between a rank's buckets and the records of a checkpoint: a rank's share of a parameter here, the whole
// parameter there.
#pragma once

#include <string>
#include <vector>

#include "exec/checkpoint/checkpoint.h"
#include "exec/runtime/bucket_state.h"
#include "exec/runtime/learning_rate.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

class InitialWeights;

// What rank `rank` reads of a checkpoint: the parameters of its stages as far as it holds them, and the
// optimizer's arrays as far as it updates them.
StateNeeds needs_of(const schedule::Program& program, const model::ModelGraph& graph, int rank);

// What rank `rank` writes. Of copies that are equal on several ranks only one is written: by the first
// data-parallel replica that has it, and the first tensor-parallel rank where a parameter is not split.
std::vector<StateRecord> records_of(const schedule::Program& program, const model::ModelGraph& graph,
                                    int rank, const std::vector<BucketState>& buckets);

// Fills the buckets of rank `rank`. A parameter that the checkpoint has not is a core::MachineError; its
// manifest should have been compared before.
void restore(const Checkpoint& checkpoint, const schedule::Program& program, const model::ModelGraph& graph,
             int rank, std::vector<BucketState>& buckets);

// The same with weights from elsewhere; the optimizer's arrays are zero.
void begin_with(const InitialWeights& weights, const schedule::Program& program,
                const model::ModelGraph& graph, int rank, std::vector<BucketState>& buckets);

// What the plan's optimizer keeps for each parameter and the checkpoint has not, in words, or the other way
// round; empty when they agree.
struct StateDifference {
    std::string missing, beyond;
};
StateDifference state_difference(const Checkpoint& checkpoint, const schedule::Plan& plan,
                                 const model::ModelGraph& graph);

// What the losses follow from beside model, data and seed, in words: the batch, the optimizer, the precision;
// when stages update without waiting for each other, the stages; with mixtures, whose capacity is of the
// tokens at hand, how the batch is divided. Plans with equal recipes have equal losses up to rounding.
std::string recipe_of(const schedule::Program& program, const model::ModelGraph& graph,
                      const LearningRateSchedule& rates = {});

// "pipeline 2 x data 2 x tensor 1, sharding none"
std::string degrees_in_words(const schedule::Plan& plan);

}  // namespace exec
