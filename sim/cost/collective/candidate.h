// A priced candidate for a collective. Each of the cost model's strategies (NCCL's algorithms and protocols,
// SMDDP, a parameter server, rounds of transfers) offers some, and the cheapest is chosen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "sim/cost/collective/network.h"

namespace sim {

struct Candidate {
    std::string algorithm;       // as plans name it: "ring", "tree", "nvls", "hierarchical", ...
    std::string protocol;        // "LL", "LL128", "Simple"; empty where there is no choice
    core::Seconds latency = {};  // before and between the moving of bytes
    // Of one group by itself: no less than the time of its busiest link; more where a protocol or a processor
    // limits the rate.
    double seconds_per_byte = 0;
    // Of the links that all groups share, whatever share of them one group can fill; 0 where
    // `seconds_per_byte` is of all groups already.
    double shared_seconds_per_byte = 0;
    // A pipeline of chunks streams at full rate only when it is filled: the first `fill` bytes count this
    // many times more.
    core::Bytes fill = {};
    double fill_times = 0;
    // Cost of handing on a slice, in every `loop` of the payload through the channels' buffers: the ring's
    // steps times their slices.
    core::Seconds loop_overhead = {};
    core::Bytes loop = {};
    // Share of the bandwidth that is reached, by log2(bytes / 64); empty: all.
    std::vector<double> reached = {};
    std::vector<LinkShare> links = {};  // what it keeps busy
    double bytes_of_a_group = 0;        // over its most loaded link, for each byte; 0: as all groups together
    double multiprocessors = 0;         // taken from kernels that run beside it
    std::optional<core::Bytes> above = {}, up_to = {};  // payloads it is used for; nothing: no limit
    // Its phases load links and processors of the node one after the other, so that shares of links do not
    // say how groups hold each other up: each group takes what all at once take.
    bool has_phases = false;
};

// Latency and the time bytes move, alone on the links.
struct CommunicationTime {
    core::Seconds latency, streaming;
    core::Seconds total() const { return latency + streaming; }
};
CommunicationTime time_of(const Candidate& candidate, core::Bytes bytes);

}  // namespace sim
