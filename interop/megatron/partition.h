// A contiguous partition as Megatron-LM's arguments say it, and back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/unsupported.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace interop {

struct MegatronPartition {
    std::vector<std::string> arguments;            // "--decoder-first-pipeline-num-layers 9"
    bool needs_layout = false;                     // --pipeline-model-parallel-layout
    std::optional<core::Unsupported> unsupported;  // no argument expresses the partition
};
MegatronPartition megatron_partition(const model::ModelGraph& graph, const schedule::Plan& plan,
                                     const schedule::Partition& partition);

// First units of "Ett|tt|ttL" (repetitions: t*3, (tt|)*2); nothing when it is not such a text.
std::optional<std::vector<std::int32_t>> read_megatron_layout(const std::string& text);

}  // namespace interop
