// A costed graph to be placed on devices, and the answer: the neutral form behind every graph-partitioning
// format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/units.h"

namespace partition {

// What is placed as one piece: the nodes of a colocation group (forward and backward halves together) or of a
// cycle of such groups.
struct PlacementItem {
    std::vector<std::int64_t> nodes;  // ids of the file
    core::Seconds accelerator_time, cpu_time;
    core::Bytes memory;       // held once whatever is in flight: weights, gradients, optimizer state
    core::Bytes activations;  // kept for backward, of every micro-batch in flight
    bool runs_on_accelerator = true;
};

// One output moved between devices: `time` is charged once to the device of `source` when any destination
// lies elsewhere, and once to every other device that holds a destination (Tarnawski et al., NeurIPS 2020, as
// their published code has it).
struct Transfer {
    std::size_t source = 0;
    std::vector<std::size_t> destinations;  // ascending, without `source`
    core::Seconds time;
    core::Bytes bytes = core::Bytes(0);  // for the cut report; zero where the file says times only
};

// Devices that are alike.
struct DeviceClass {
    std::string name = "accelerator";
    int count = 1;
    bool is_cpu = false;  // pays cpu_time, no transfer, and has no memory limit
    double slowness = 1,
           transfer_slowness =
               1;  // factors on an item's accelerator time (of a CPU: cpu_time) and on transfers
    std::optional<core::Bytes> memory_limit = std::nullopt;  // none: holds any amount

    // For sums and comparisons: infinite without a limit.
    core::Bytes most_memory() const {
        return memory_limit.value_or(core::Bytes(std::numeric_limits<double>::infinity()));
    }
    bool has_room_for(core::Bytes memory) const { return is_cpu || memory <= most_memory(); }
    core::Seconds work(const PlacementItem& item) const {
        return is_cpu ? item.cpu_time : item.accelerator_time;
    }
    // Of a stage with so much work and transfers of so long; both in seconds, or in any other one measure of
    // time.
    template <class Time>
    Time load(Time work, Time transfers) const {
        return is_cpu ? work * slowness : work * slowness + transfers * transfer_slowness;
    }
};
inline constexpr std::size_t most_device_classes = 4;

struct PlacementProblem {
    std::vector<PlacementItem> items;                             // in a topological order of `precedence`
    std::vector<std::pair<std::size_t, std::size_t>> precedence;  // (before, after), before < after
    std::vector<Transfer> transfers;
    int accelerators = 1;
    int cpus = 0;  // a CPU pays cpu_time, no transfer, and has no memory limit
    std::optional<core::Bytes> memory_limit = std::nullopt;  // of an accelerator
    std::vector<DeviceClass> devices;  // devices that differ; empty: the three fields above
    // Of a step. Stage s of p keeps the activations of min(micro_batches, p - s) at once (1F1B); 1: memory
    // does not depend on the position in the pipeline.
    int micro_batches = 1;
    std::vector<std::string> node_names;  // of nodes 0, 1, ...; empty: nodes are told by their numbers
};
std::string node_name(const PlacementProblem& problem, std::int64_t node);
// Of everything that decides a placement but the devices: 16 hexadecimal digits. Saved decisions carry it and
// are refused for another graph.
std::string hash_of(const PlacementProblem& problem);
// The devices of a problem, by class: `devices`, or accelerators (class 0) and CPUs (class 1). Counts never
// exceed the number of items: more stages there are none.
std::vector<DeviceClass> device_classes(const PlacementProblem& problem);

struct PlacedStage {
    std::size_t device_class = 0;
    bool is_cpu = false;
    std::vector<std::size_t> items;  // ascending
    core::Seconds load;
    core::Bytes memory;
};

struct PlacementResult {
    bool is_feasible = false;
    std::vector<PlacedStage> stages;  // in pipeline order; empty devices are left out
    core::Seconds objective;          // the largest load
    core::Seconds lower_bound;
    bool is_proven_optimal = false;  // among contiguous placements, or among all of them, as the search says
    bool is_proven_infeasible = false;
    std::string reason;         // why there is no placement
    std::int64_t expanded = 0;  // sets of items looked at
};

struct PlacementProgress {
    double objective, lower_bound;  // seconds; the objective is infinite before there is a placement
    double seconds;                 // since the search began
};

struct PlacementOptions {
    std::optional<core::Seconds> time_limit = std::nullopt;
    int threads = 0;  // 0: all cores; the answer does not depend on it
    std::function<void(const PlacementProgress&)> progress =
        {};  // called when a bound moves, from the calling thread
    std::function<bool()> is_stopped =
        {};  // true: end as at the time limit; asked by several threads at once
};

// Load and memory of one device of a class that holds `items`, with activations of `in_flight` micro-batches.
PlacedStage stage_of(const PlacementProblem& problem, std::vector<std::size_t> items,
                     std::size_t device_class, int in_flight = 1);
// Sets what the position in the pipeline decides: micro-batches in flight and so memory.
void settle_memory(const PlacementProblem& problem, std::vector<PlacedStage>& stages);
// The largest load of a complete placement by the definition above: the checker that every search result
// passes, and expert splits are judged by.
core::Seconds largest_load(const PlacementProblem& problem, const std::vector<PlacedStage>& stages);

// SageMaker SMP v1's objective: every load is `memory_weight` times its share of all memory plus (1 -
// memory_weight) times its share of all time (transfers count as time). Loads of the result are such shares.
PlacementProblem weighed(const PlacementProblem& problem, double memory_weight);

// A bound no placement can beat, contiguous or not: total work over all devices, and for every heavy item the
// lightest set of items around it (a minimum cut).
core::Seconds placement_lower_bound(const PlacementProblem& problem);
// Empty, or why no placement can respect the limits, with numbers (one item too large, everything together
// too large, no CPU for what only runs there).
std::string placement_infeasibility(const PlacementProblem& problem);

// Exact: every stage is the difference of two downsets of `precedence`. Anytime: at the time limit the best
// so far with a valid lower bound.
PlacementResult place_contiguous(const PlacementProblem& problem, const PlacementOptions& options = {});
// Any assignment of items to devices: seeded local search from the best contiguous placement; the lower bound
// is placement_lower_bound.
PlacementResult place_anywhere(const PlacementProblem& problem, const PlacementOptions& options = {});

}  // namespace partition
