// Interpreter 1 of a Program: a virtual clock. Durations in, Timeline and MemoryTimeline out; nothing here
// knows of models, devices or networks.
//
// An instruction starts when the one before it on its stream and all in its `after` list have ended (without
// concurrent streams: when the one before it in the list has ended). A send is buffered: its transfer starts
// with it and occupies its stream until it ends. A receive ends when the transfer has arrived. A collective
// is a rendezvous: it moves data from the moment the last member reached it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"
#include "sim/engine/memory_sweep.h"

namespace sim {

// How long each instruction works, per class and instruction: compute, optimizer and zeroing on the device; a
// send its transfer; a receive its own handling after arrival (usually zero); a collective from rendezvous to
// end.
struct Durations {
    // Of joined instructions those of their parts, one after another; instructions alike share them.
    struct Parts {
        static constexpr std::uint32_t none = 0xffffffff;
        std::vector<std::uint32_t> begin;  // by instruction: of its first part, or none
        std::vector<core::Seconds> times;
        bool operator==(const Parts&) const = default;
    };

    std::vector<std::vector<core::Seconds>> of = {};  // of a joined instruction with all its parts
    std::vector<Parts> parts = {};                    // by class; empty where none of them joins
    bool operator==(const Durations&) const = default;
};

// Where the parts of a joined instruction have got to.
class PartClock {
public:
    explicit PartClock(double start = 0) : start_(start), end_(start) {}
    double start(const schedule::Instruction& next) const { return next.starts_early ? start_ : end_; }
    void end(const schedule::Instruction& next, double end) {
        if (!next.starts_early) start_ = end_;
        end_ = next.starts_early ? std::max(end_, end) : end;
    }
    double end() const { return end_; }  // of all so far

private:
    double start_, end_;  // of the last part that did not start early
};

struct Contention;

struct SimulateOptions {
    bool has_concurrent_streams =
        true;                 // false: a performer works through its list one instruction after another
    bool is_folded = true;    // one representative per class; false: every rank is a performer of its own
    bool keeps_spans = true;  // else Timeline::spans is empty (makespan and peaks only)
    bool keeps_memory_samples = true;  // else only peaks
    bool tracks_memory = true;
    const std::vector<ExtraMemory>* extra_memory = nullptr;  // by class: held beside the Program's buffers
    bool blocks_on_transfers = false;  // a send occupies the compute stream until it ends
    // Communications that share links while they run (sim/cost/contention.h, found for the same folding);
    // their durations are then how long they take alone. Null: none do.
    const Contention* contention = nullptr;
};

struct Simulation {
    schedule::Timeline timeline;
    schedule::MemoryTimeline memory;
    std::vector<MemoryPeak> memory_peak;  // per performer
    // When the instruction began to move data, in the order of Timeline::spans: receives (the sender started)
    // and collectives (the last member came); else its start.
    std::vector<std::vector<core::Seconds>> active_from;
    std::vector<core::Seconds> end;  // per performer: end of its last instruction
    // Per performer, by instruction: ends of the parts of joined instructions some of which met others on a
    // link. The other parts take their durations.
    std::vector<std::map<std::uint32_t, std::vector<core::Seconds>>> ends_of_parts;
    std::uint64_t instructions = 0;  // performed
};

// The Program must have passed schedule::verify; one that waits for something that never happens is a broken
// promise (core::InternalError). Same input, same bytes out: the order of evaluation does not enter the
// result, ties do not exist.
Simulation simulate(const schedule::Program& program, const Durations& durations,
                    const SimulateOptions& options = {});

// The same Program with one set of durations after another: what does not depend on them is found once.
class Simulator {
public:
    // Of the options those of streams and folding. The Program must outlive it.
    Simulator(const schedule::Program& program, const SimulateOptions& options);
    ~Simulator();
    // Are streams and folding those that it was made for?
    bool is_for(const SimulateOptions& options) const;
    // As simulate(), under options that it is for.
    Simulation simulate(const Durations& durations, const SimulateOptions& options);

private:
    struct Content;
    std::unique_ptr<Content> content_;
};

// Durations for a Program without a model behind it: forward, backward_input and backward_weight per virtual
// stage (backward = both), and one transfer time.
struct StageTimes {
    std::vector<core::Seconds> forward, backward_input, backward_weight;  // by virtual stage
    core::Seconds transfer;
};
Durations durations_of(const schedule::Program& program, const StageTimes& times);

}  // namespace sim
