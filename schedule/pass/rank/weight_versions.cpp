#include "schedule/pass/rank/weight_versions.h"

namespace schedule {

std::vector<std::uint32_t> WeightVersions::begin_update(InstructionList& list, const Plan& plan,
                                                        const RankProgram& rank) {
    const std::int32_t newest = forwards_ - 1;
    std::vector<std::uint32_t> buffers;
    if (forwards_ > backwards_ && version_of_[newest] == updates_)
        for (const ParameterBucket& bucket : rank.buckets)
            buffers.push_back(list.buffer(MemoryKind::parameters,
                                          bucket.padded_elements * core::size_of(plan.precision.parameters)));
    if (!buffers.empty()) replaced_[newest] = buffers;
    ++updates_;
    return buffers;
}

}  // namespace schedule
