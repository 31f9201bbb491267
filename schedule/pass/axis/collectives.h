// Collectives over buckets and over a few numbers, and copies of buckets, as instructions.
#pragma once

#include <cstdint>

#include "core/optional_index.h"
#include "schedule/pass/rank_draft.h"

namespace schedule {

// Over a bucket's parameters or gradients, or over this rank's shard of them, after instruction `after`.
struct BucketCollective {
    CollectiveKind kind = CollectiveKind::all_reduce;
    GroupKind group = GroupKind::data;
    PayloadKind payload = PayloadKind::parameter_gradient;
    bool on_shard = false;
};
std::uint32_t append_collective(RankDraft& draft, std::int32_t bucket, const BucketCollective& collective,
                                std::uint32_t after);

// What this rank owns of a bucket, in bytes: of its parameters, or of its gradient.
core::Bytes owned_bytes(const RankDraft& draft, std::int32_t bucket, PayloadKind payload);
// A copy of that: parameters from the host (`loads`), or the gradient to it, after instruction `after`.
std::uint32_t append_bucket_copy(RankDraft& draft, std::int32_t bucket, bool loads, std::uint32_t after,
                                 std::int32_t micro_batch = -1);

// Adds up a few numbers of every member. `bucket`: the one that they belong to, if any.
std::uint32_t append_sum(RankDraft& draft, GroupKind group, PayloadKind payload, core::Bytes bytes,
                         std::uint32_t after, core::OptionalIndex bucket = {});

}  // namespace schedule
