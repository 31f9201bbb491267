#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

Stream stream_of(GroupKind group) { return group == GroupKind::tensor ? Stream::tensor : Stream::data; }

core::Bytes size_of_element(const RankDraft& draft, PayloadKind payload) {
    const Precision& precision = draft.plan.precision;
    return core::size_of(payload == PayloadKind::parameter ? precision.parameters : precision.gradients);
}

}  // namespace

std::uint32_t append_collective(RankDraft& draft, std::int32_t bucket, const BucketCollective& collective,
                                std::uint32_t after) {
    const ParameterBucket& b = draft.buckets.buckets[bucket];
    Instruction instruction;
    instruction.kind = InstructionKind::collective;
    instruction.stream = stream_of(collective.group);
    instruction.collective = collective.kind;
    instruction.group = collective.group;
    instruction.payload = collective.payload;
    instruction.bucket = bucket;
    instruction.on_shard = collective.on_shard;
    instruction.stage = b.stage;
    instruction.bytes = collective.on_shard ? owned_bytes(draft, bucket, collective.payload)
                                            : b.padded_elements * size_of_element(draft, collective.payload);
    draft.list.wait_for(after);
    return draft.list.append(instruction);
}

core::Bytes owned_bytes(const RankDraft& draft, std::int32_t bucket, PayloadKind payload) {
    const ParameterBucket& b = draft.buckets.buckets[bucket];
    return b.padded_elements / b.pieces * size_of_element(draft, payload);
}

std::uint32_t append_bucket_copy(RankDraft& draft, std::int32_t bucket, bool loads, std::uint32_t after,
                                 std::int32_t micro_batch) {
    const ParameterBucket& b = draft.buckets.buckets[bucket];
    Instruction copy;
    copy.kind = InstructionKind::copy;
    copy.stream = Stream::copy;
    copy.payload = loads ? PayloadKind::parameter : PayloadKind::parameter_gradient;
    copy.bucket = bucket;
    copy.on_shard = b.pieces > 1;
    copy.stage = b.stage;
    copy.micro_batch = micro_batch;
    copy.loads = loads;
    copy.bytes = owned_bytes(draft, bucket, copy.payload);
    draft.list.wait_for(after);
    return draft.list.append(copy);
}

std::uint32_t append_sum(RankDraft& draft, GroupKind group, PayloadKind payload, core::Bytes bytes,
                         std::uint32_t after, core::OptionalIndex bucket) {
    Instruction sum;
    sum.kind = InstructionKind::collective;
    sum.stream = stream_of(group);
    sum.collective = CollectiveKind::all_reduce;
    sum.group = group;
    sum.payload = payload;
    sum.bytes = bytes;
    sum.bucket = bucket;
    if (bucket) sum.stage = draft.buckets.buckets[*bucket].stage;
    draft.list.wait_for(after);
    return draft.list.append(sum);
}

}  // namespace schedule
