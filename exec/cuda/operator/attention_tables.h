// What attention operators read beside their operands: turns of rotary positions, slopes of ALiBi. In device
// memory, once for all parts of a sequence.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "exec/cuda/machine.h"
#include "model/model_fwd.h"
#include "model/operators/cost_context.h"

namespace exec::cuda {

class AttentionTables {
public:
    struct Of {
        std::int64_t rotary_dimension = 0;
        float *cosines = nullptr, *sines = nullptr;  // [tokens of a whole sequence, rotary_dimension / 2]
        float* slopes = nullptr;                     // [heads of this rank]
    };
    AttentionTables(const model::ModelGraph& graph, const model::CostContext& context, int tensor_rank,
                    Machine& machine);
    ~AttentionTables();
    AttentionTables(const AttentionTables&) = delete;
    AttentionTables& operator=(const AttentionTables&) = delete;

    const Of* find(model::OperatorId attention) const;  // null: it needs none

private:
    Machine& machine_;
    std::map<std::int32_t, Of> tables_;  // by operator
    std::vector<void*> blocks_;
};

}  // namespace exec::cuda
