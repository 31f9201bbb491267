// Prices of collectives that plans of one cluster share: groups of ranks lie alike under many layouts, and
// are priced once.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/candidate.h"
#include "sim/cost/collective/nccl.h"

namespace sim {

// Of each block of `step * count` ranks those that are `step` apart: of all such groups those on the first
// nodes, as the others lie alike on further ones.
struct GroupPattern {
    schedule::CollectiveKind kind = schedule::CollectiveKind::all_reduce;
    bool is_inside_model = false;  // libraries for data parallelism do not serve it
    int ranks = 1;                 // that it describes
    int step = 1, count = 1;
    auto operator<=>(const GroupPattern&) const = default;

    Groups groups() const;  // by rank
};

// Of the groups that a plan has of that kind at its first pipeline coordinate, which has whole nodes of its
// own; nothing where they are no such blocks. `node`: ranks of one.
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
