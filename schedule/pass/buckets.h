// Which parameters of a rank are reduced, gathered and updated together, and which operators' backward
// completes their gradient.
#pragma once

#include <vector>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"

namespace schedule {

// How one virtual stage uses a bucket.
struct BucketUse {
    std::int32_t stage = 0;
    std::int32_t lowest_operator = 0;   // its gradient is complete after the backward of this one
    std::int32_t highest_operator = 0;  // ... and begins with the backward of this one
    std::vector<std::int32_t> units;    // partition units that read it, ascending
};

struct RankBuckets {
    std::vector<ParameterBucket> buckets;
    std::vector<std::vector<BucketUse>> uses;  // by bucket, ascending stages
};

// Invariant: every parameter that the rank's stages use lies in exactly one bucket. Buckets fill in reverse
// operator order up to plan.gradient_bucket, as PyTorch's DistributedDataParallel fills them (bucket_cap_mb);
// with sharded parameters a bucket has the parameters of one unit. A parameter that several units of the rank
// or other ranks use too is a bucket of its own, and so are, together, parameters whose gradients are partial
// over the tensor-parallel group, and experts that are spread over ranks. `stages` are all virtual stages of
// the Program, `directions` copies of the model one after the other: what only the copies of one stage use is
// a tied bucket too.
RankBuckets buckets_of_rank(const model::ModelGraph& graph, const Plan& plan,
                            const std::vector<StageInfo>& stages, int rank, int directions = 1);

}  // namespace schedule
