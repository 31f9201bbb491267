// Pieces that several generators share: making actions, and orders in which groups of micro-batches pass
// through the chunks of a rank.
#pragma once

#include <vector>

#include "schedule/pipeline/registry.h"

namespace schedule {

inline Action forward_of(int stage, int micro_batch) { return {ActionKind::forward, stage, micro_batch}; }
inline Action backward_of(int stage, int micro_batch) { return {ActionKind::backward, stage, micro_batch}; }
inline Action backward_input_of(int stage, int micro_batch) {
    return {ActionKind::backward_input, stage, micro_batch};
}
inline Action backward_weight_of(int stage, int micro_batch) {
    return {ActionKind::backward_weight, stage, micro_batch};
}

// An empty schedule of that shape and placement.
Schedule empty_schedule(const std::string& name, const PipelineShape& shape,
                        StagePlacement placement = StagePlacement::loop);

struct ChunkStep {
    int chunk = 0, micro_batch = 0;
};
// Groups of `group` micro-batches, each group through all chunks before the next: the order of forwards in
// Megatron-LM's interleaved schedule (get_schedule_table); the last group has the rest.
std::vector<ChunkStep> grouped_order(int micro_batches, int chunks, int group);

}  // namespace schedule
