// Which communications of a Program can use a link at the same time, and which share of its rate each uses:
// the part of pricing that needs more than one instruction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/optional_index.h"
#include "core/units.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/collective.h"
#include "sim/engine/flow_engine.h"

namespace sim {

// One communication that shares links. Alone it lasts latency + streaming. While it streams, each of its
// links is busy for a part of the time.
struct Communication {
    core::Seconds latency, streaming;
    core::Seconds priced;  // as one instruction of its class, all ranks at once; what a duration has beyond
                           // it comes before the first byte
    std::vector<ResourceUse> uses;  // share: of the link's rate, at full speed
    double weight = 1;  // level at which links are shared: seconds in which one group or pair of ranks sends
                        // a gigabyte over its most loaded link, so that groups share bytes, not progress
};

struct Contention {
    std::size_t links =
        0;  // that can be contended, each with capacity 1; links with the same users count as one
    std::vector<Communication> communications;
    // Per class and instruction: the kind of communication; of a joined one that of the first of its parts
    // that has one. The same per part. Per kind and performer: which of `communications`. Nothing in any of
    // them where no link is shared.
    std::vector<std::vector<core::OptionalIndex>> kind_of, kind_of_part;
    std::vector<std::vector<core::OptionalIndex>> communication_of;
    bool is_empty() const { return communications.empty(); }
};

// Finds the contention of Programs of one plan, one after another: what they communicate is mostly the same,
// however many micro-batches they have. Folded: a class's communication is that of all its ranks at once, as
// priced. Unfolded: every group and every pair of ranks has its own.
class ContentionFinder {
public:
    // `costs` must outlive it.
    ContentionFinder(CommunicationCost& costs, bool is_folded);
    ~ContentionFinder();
    Contention find(const schedule::Program& program);

private:
    class Finder;
    std::unique_ptr<Finder> finder_;
};

// Of one Program.
Contention find_contention(const schedule::Program& program, CommunicationCost& costs, bool is_folded);

}  // namespace sim
