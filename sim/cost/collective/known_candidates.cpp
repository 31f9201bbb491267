#include "sim/cost/collective/known_candidates.h"

#include "sim/cost/collective/collective.h"

namespace sim {

Groups GroupPattern::groups() const {
    Groups groups;
    const auto add = [&](int first, int apart, int members) {
        std::vector<std::int32_t>& ranks = groups.devices.emplace_back();
        for (int i = 0; i < members; ++i) ranks.push_back(first + i * apart);
    };
    if (is_tensor) {
        for (int d = 0; d < data; ++d) add(d * tensor, 1, tensor);
        return groups;
    }
    for (int block = 0; block < data; block += step * count)
        for (int d = block; d < block + step; ++d)
            for (int t = 0; t < tensor; ++t) add(d * tensor + t, step * tensor, count);
    return groups;
}

std::optional<GroupPattern> pattern_of(const schedule::Plan& plan, schedule::CollectiveKind kind,
                                       schedule::GroupKind group, int node) {
    const schedule::ParallelLayout& layout = plan.layout;
    if (layout.order != "PDT" || layout.tensor * layout.data % node != 0) return std::nullopt;
    const int shard = plan.effective_shard_degree();
    GroupPattern pattern;
    pattern.kind = kind;
    pattern.tensor = layout.tensor;
    pattern.is_inside_model = is_inside_model(group);
    switch (group) {
        case schedule::GroupKind::tensor: pattern.is_tensor = true; break;
        case schedule::GroupKind::data: pattern.count = layout.data; break;
        case schedule::GroupKind::shard: pattern.count = shard; break;
        case schedule::GroupKind::context: pattern.count = layout.context; break;
        case schedule::GroupKind::expert: pattern.count = layout.expert; break;
        case schedule::GroupKind::replica:
            pattern.step = shard;
            pattern.count = layout.data / shard;
            break;
        case schedule::GroupKind::expert_replica:
            pattern.step = layout.expert;
            pattern.count = layout.data / layout.expert;
            break;
        case schedule::GroupKind::expert_shard:
            if (shard % layout.expert != 0) return std::nullopt;
            pattern.step = layout.expert;
            pattern.count = shard / layout.expert;
            break;
        case schedule::GroupKind::world:
        case schedule::GroupKind::pipeline:
        case schedule::GroupKind::tied_stages: return std::nullopt;
    }
    const int block = pattern.step * pattern.count * layout.tensor;
    const int ranks = block % node == 0 ? block : node % block == 0 ? node : layout.tensor * layout.data;
    pattern.data = ranks / layout.tensor;
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
