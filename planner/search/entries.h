// Plans of a search, and what is known of them: one by one where they were looked into, else of many at once.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/units.h"
#include "planner/bound/bounds.h"
#include "planner/search.h"
#include "schedule/plan/plan.h"

namespace planner {

struct Entry {
    std::size_t target = 0;
    schedule::Plan plan;
    bool is_bounded = false;  // else the bound is of any partition, or its family's, and no memory is known
    bool is_taken = false;    // simulated
    double bound = 0;         // of the objective
    core::Seconds time_bound;
    MemoryBound memory;
    core::Bytes beyond_bound;            // by which a simulated peak that is too large exceeds that
    std::optional<Rejection> rejection;  // nothing: still a candidate
    std::size_t ordinal = 0;             // in the order of the space; of those beside it, of their making
    std::size_t layout = 0;              // index into Search::bounds_
    std::size_t group = 0;               // index into Search::groups_
    bool is_tight = false;               // the bound is of its very compute order
    bool is_timed = false;               // ... and of everything else it does, but for what runs beside it
    // Offload: of the target's loading horizons those from `first` to before `end` are in question, and while
    // none is chosen the bounds are those of any.
    bool is_open = false;
    bool is_shorter = false;  // it fits with a longer horizon
    // The horizon in question is the shortest, after a longer one with which this or its like did not fit;
    // the bounds are of any. And where that one fitted: longer ones again.
    bool is_shortest = false, knows_shortest = false;
    std::size_t first = 0, end = 0;
    // Plans of the space: this one, and those that are looked at after it, if at all.
    std::size_t stands_for = 1;
    bool is_beside_space() const { return stands_for == 0; }
    // The same plan once more, to be changed.
    Entry beside_space() const {
        Entry entry;
        entry.target = target;
        entry.layout = layout;
        entry.group = group;
        entry.plan = plan;
        entry.stands_for = 0;
        return entry;
    }
    // Too large for memory: so many layers of each stage run again for it to fit. 0: none do, or all must.
    int fewest_layers = 0;
    std::size_t skipped = 0;  // of the last choice of a horizon: plans that cannot fit
};

// Plans of one target, layout, micro-batch, context communication, pieces and recomputation. They share the
// work of a step but for what depends on how sequences pass and the handling of gradients: those that share
// that too are a family, with one bound, and are looked at only where that bound does not exclude them. Until
// then they are counted and not kept.
struct Family {
    std::size_t group = 0;  // index into Search::groups_
    schedule::Plan first;   // of its plans
    std::size_t stands_for = 0;
    std::size_t divided = 0;           // plans, offload not counted, whose every partition may be looked at
    std::vector<std::size_t> members;  // entries, once they are made
    double bound = 0;                  // of the objective
    core::Seconds time_bound;
    bool is_bounded = false;
    bool is_open = true;  // neither looked into nor rejected as a whole
};
struct Group {
    std::size_t target = 0, layout = 0;
    std::vector<std::size_t> families;
    std::size_t first_ordinal = 0;
    std::vector<std::size_t> members;  // entries of the families that probes opened
    bool is_probed = false;
    bool is_made = false;  // its families have their members
};

}  // namespace planner
