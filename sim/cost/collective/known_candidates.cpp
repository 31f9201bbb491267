#include "sim/cost/collective/known_candidates.h"

#include <cstdint>

#include "core/index/integers.h"

namespace sim {

Groups GroupPattern::groups() const {
    Groups groups;
    for (int block = 0; block < ranks; block += step * count)
        for (int first = block; first < block + step; ++first) {
            std::vector<std::int32_t>& members = groups.devices.emplace_back();
            for (int i = 0; i < count; ++i) members.push_back(first + i * step);
        }
    return groups;
}

std::optional<GroupPattern> pattern_of(const schedule::Plan& plan, schedule::CollectiveKind kind,
                                       schedule::GroupKind group, int node) {
    const schedule::ParallelLayout& layout = plan.layout;
    const int all = layout.tensor * layout.data;
    if (!layout.order.starts_with('P') || all % node != 0 || group == schedule::GroupKind::world ||
        group == schedule::GroupKind::pipeline || group == schedule::GroupKind::tied_stages)
        return std::nullopt;
    // Shards that do not hold all experts evenly have groups of several sizes.
    if (group == schedule::GroupKind::expert_shard && plan.effective_shard_degree() % layout.expert != 0)
        return std::nullopt;
    const std::vector<int> members = schedule::process_group(layout, group, 0, plan.effective_shard_degree());
    GroupPattern pattern;
    pattern.kind = kind;
    pattern.count = core::count_of(members);
    if (pattern.count > 1) pattern.step = members[1];
    const int block = pattern.step * pattern.count;
    pattern.ranks = block % node == 0 ? block : node % block == 0 ? node : all;
    return pattern;
}

const std::vector<Candidate>& KnownCandidates::of(const GroupPattern& pattern,
                                                  const std::function<std::vector<Candidate>()>& make) {
    Entry* entry = nullptr;
    {
        const std::lock_guard lock(guard_);
        entry = &entries_[pattern];
    }
    std::call_once(entry->is_made, [&] { entry->candidates = make(); });
    return entry->candidates;
}

}  // namespace sim
