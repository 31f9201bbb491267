// Which of a rank's instructions an evaluation performs, and when gathered parameters go.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/index/indexed_vector.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

// Nothing for parameters of other ranks.
using BucketOfParameter = core::IndexedVector<model::ParameterId, std::optional<std::int32_t>>;

// By instruction: buckets whose gathered parameters go after it. They live until the last computation that
// reads them before they are gathered anew. Instructions that are not performed read nothing.
std::vector<std::vector<std::int32_t>> releases_of(const schedule::RankProgram& list,
                                                   const model::ModelGraph& graph,
                                                   const BucketOfParameter& bucket_of,
                                                   const std::vector<char>& is_performed);

struct EvaluationList {
    std::vector<char> is_performed;                   // by instruction
    std::vector<std::vector<std::int32_t>> releases;  // releases_of, where parameters are sharded
    // By instruction, where sequences pass in parts: whose tensors nothing reads after it.
    struct Ended {
        std::int32_t stage = 0, micro_batch = 0;
    };
    std::vector<std::vector<Ended>> ended;
};

// Forwards, what they exchange, and gathers of parameters that a forward reads before they are gathered anew.
// A part of a list whose order is valid: of a send and its receive, and of all members' parts of a
// collective, either all are performed or none.
EvaluationList evaluation_list(const schedule::Program& program, const schedule::RankProgram& list,
                               const model::ModelGraph& graph, const BucketOfParameter& bucket_of);

}  // namespace exec
