// Prices of collectives that plans of one cluster share: groups of ranks lie alike under many layouts, and are
// priced once.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/candidate.h"
#include "sim/cost/collective/nccl.h"

namespace sim {

// Groups of ranks that are numbered tensor-parallel first, then along the data axis: of each block of `step *
// count` coordinates of that axis those that are `step` apart, or of each coordinate all of the tensor axis
// (`is_tensor`). Of all such groups those on the first nodes: the others lie alike on further ones.
struct GroupPattern {
    schedule::CollectiveKind kind = schedule::CollectiveKind::all_reduce;
    bool is_inside_model = false;  // libraries for data parallelism do not serve it
    bool is_tensor = false;
    int tensor = 1, data = 1;  // degrees of the ranks that it describes
    int step = 1, count = 1;
    auto operator<=>(const GroupPattern&) const = default;

    Groups groups() const;  // by rank
};

// Of the groups that a plan has of that kind at a pipeline coordinate with whole nodes of its own; nothing
// where ranks are numbered in another order, or the groups are of other axes. `node`: ranks of one.
std::optional<GroupPattern> pattern_of(const schedule::Plan& plan, schedule::CollectiveKind kind,
                                       schedule::GroupKind group, int node);

// Of plans that differ in their layouts, micro-batches, sharding and schedules alone. All threads may ask.
class KnownCandidates {
public:
    // Makes them at the first question.
    const std::vector<Candidate>& of(const GroupPattern& pattern,
                                     const std::function<std::vector<Candidate>()>& make);

private:
    struct Entry {
        std::once_flag is_made;
        std::vector<Candidate> candidates;
    };
    std::mutex guard_;
    std::map<GroupPattern, Entry> entries_;
};

}  // namespace sim
