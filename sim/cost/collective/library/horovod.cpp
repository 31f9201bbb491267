// Horovod over NCCL (Sergeev and Del Balso, arXiv 1802.05799): ranks report which tensors are ready, a
// coordinator answers which are ready everywhere, and those are fused and reduced by NCCL. Fusion itself is
// the plan's gradient_bucket (HOROVOD_FUSION_THRESHOLD: 128 MiB, before release 0.21 64 MiB).
#include <cmath>

#include "sim/cost/collective/host_path.h"

namespace sim {

namespace {

// HOROVOD_CYCLE_TIME's default (horovod/horovod, common/operations.cc, read 2026-11-23): 1 ms since release
// 0.21 of 2020-11, 5 ms before. Tensors wait half a cycle on average.
constexpr core::Seconds cycle = core::milliseconds(1);

}  // namespace

std::vector<Candidate> horovod_candidates(const LibraryContext& context, schedule::CollectiveKind kind,
                                          const Groups& groups) {
    std::vector<Candidate> candidates =
        nccl_candidates(context.cluster, context.collective_network, kind, groups);
    if (kind != schedule::CollectiveKind::all_reduce) return candidates;
    const GroupShape shape = shape_of(context.cluster, groups.devices.front());
    // Readiness goes up a tree over the nodes and the answer down again.
    const double levels = std::ceil(std::log2(static_cast<double>(shape.nodes)));
    for (Candidate& candidate : candidates)
        candidate.latency += cycle / 2.0 + host_message_time(context) * (2 * levels);
    return candidates;
}

}  // namespace sim
