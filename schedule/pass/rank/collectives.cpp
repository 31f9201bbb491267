#include "schedule/pass/rank/collectives.h"

namespace schedule {

namespace {

Stream stream_of(GroupKind group) { return group == GroupKind::tensor ? Stream::tensor : Stream::data; }

}  // namespace

std::uint32_t append_collective(InstructionList& list, const Plan& plan, const RankProgram& rank,
                                std::int32_t bucket, const BucketCollective& collective,
                                std::uint32_t after) {
    const ParameterBucket& b = rank.buckets[bucket];
    const core::Bytes size = core::size_of(
        collective.payload == PayloadKind::parameter ? plan.precision.parameters : plan.precision.gradients);
    Instruction instruction;
    instruction.kind = InstructionKind::collective;
    instruction.stream = stream_of(collective.group);
    instruction.collective = collective.kind;
    instruction.group = collective.group;
    instruction.payload = collective.payload;
    instruction.bucket = bucket;
    instruction.on_shard = collective.on_shard;
    instruction.stage = b.stage;
    instruction.bytes = (collective.on_shard ? b.padded_elements / b.pieces : b.padded_elements) * size;
    list.wait_for(after);
    return list.append(instruction);
}

std::uint32_t append_sum(InstructionList& list, const RankProgram& rank, GroupKind group, PayloadKind payload,
                         core::Bytes bytes, std::uint32_t after, core::OptionalIndex bucket) {
    Instruction sum;
    sum.kind = InstructionKind::collective;
    sum.stream = stream_of(group);
    sum.collective = CollectiveKind::all_reduce;
    sum.group = group;
    sum.payload = payload;
    sum.bytes = bytes;
    sum.bucket = bucket;
    if (bucket) sum.stage = rank.buckets[*bucket].stage;
    list.wait_for(after);
    return list.append(sum);
}

}  // namespace schedule
