// Pipeline stages that are themselves replicated and split: each stage takes d data-parallel replicas of t
// tensor-parallel devices, and each node one of several configurations on t devices (with or without
// recomputation). The model is Piper's (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021), as its published
// code evaluates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "partition/placement.h"

namespace partition {

// One way to run a node on some number of devices.
struct NodeConfiguration {
    std::string name;
    core::Seconds time_per_sample;
    core::Bytes parameters;                       // of one device, reduced among replicas once a batch
    core::Bytes memory_per_sample, memory_fixed;  // of one device: per_sample * (samples in flight) + fixed
    std::map<std::size_t, core::Bytes> receive_from,
        send_to;  // extra bytes when that neighbour lies in another stage
};

struct ConfigurableNode {
    std::int64_t id = 0;
    std::string name;
    std::map<int, std::vector<NodeConfiguration>> configurations;  // by tensor-parallel degree
};

struct ReplicatedProblem {
    struct Edge {
        std::size_t from, to;
        core::Bytes bytes;
    };
    std::vector<ConfigurableNode> nodes;  // in a topological order of the edges
    std::vector<Edge> edges;
    int devices = 1;
    core::Bytes memory_limit;
    core::BytesPerSecond bandwidth;
    int micro_batches = 1;  // in a batch; data-parallel degrees divide it and their sum is at most this
};

struct ReplicatedStage {
    std::vector<std::size_t> nodes;  // ascending
    int data = 1, tensor = 1;
    std::vector<std::size_t> configurations;  // per node, index into its list for `tensor`
    core::Seconds time;                       // per sample
    core::Bytes memory;                       // of one device
};

struct ReplicatedResult {
    bool is_feasible = false;
    bool is_proven_optimal = false;  // to a relative 1e-9
    bool is_proven_infeasible = false;
    std::vector<ReplicatedStage> stages;   // first in the pipeline first
    core::Seconds objective, lower_bound;  // the largest stage time per sample
    std::string reason;
};

struct ReplicatedOptions {
    std::optional<core::Seconds> time_limit = std::nullopt;
    std::function<void(const PlacementProgress&)> progress =
        {};  // called when a bound moves, from the calling thread
    std::function<bool()> is_stopped =
        {};  // true: end as at the time limit; asked by several threads at once
    std::size_t most_downsets =
        4000;  // beyond, stages are cut from one topological order and nothing is proven
};

// Time per sample and memory of a stage; `later_replicas` is the sum of data-parallel degrees of the stages
// after it. The checker of every result.
ReplicatedStage evaluate_stage(const ReplicatedProblem& problem, std::vector<std::size_t> nodes, int data,
                               int tensor, std::vector<std::size_t> configurations, int later_replicas);

ReplicatedResult place_replicated(const ReplicatedProblem& problem, const ReplicatedOptions& options = {});

}  // namespace partition
