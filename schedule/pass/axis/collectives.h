// Collectives over buckets and over a few numbers, as instructions.
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

// Adds up a few numbers of every member. `bucket`: the one that they belong to, if any.
std::uint32_t append_sum(RankDraft& draft, GroupKind group, PayloadKind payload, core::Bytes bytes,
                         std::uint32_t after, core::OptionalIndex bucket = {});

}  // namespace schedule
