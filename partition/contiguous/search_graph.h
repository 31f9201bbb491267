// A placement problem as the contiguous search walks it: flat arrays, sums over descendants, and what CPUs
// could take. Immutable, shared by all threads.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/placement.h"

namespace partition {

struct SearchGraph {
    struct Incidence {
        std::uint32_t transfer;
        bool is_source;
    };

    explicit SearchGraph(const PlacementProblem& problem);

    // Largest sum of `gain` that one CPU, the fastest, can take below this load, pieces allowed.
    double cpu_can_take(double load) const { return knapsack(by_work, load / least_cpu_slowness); }
    double cpu_can_hold(double load) const { return knapsack(by_memory, load / least_cpu_slowness); }

    std::vector<DeviceClass> classes;
    std::vector<double> memory_limit;  // bytes of a device of each class; infinite: none
    int micro_batches;
    std::size_t count, words;
    std::vector<double> work, cpu_work, memory, activations;
    std::vector<std::uint64_t> below;  // bit sets of `words` each: an item and all its descendants
    std::vector<double> work_below;    // of those
    std::vector<char> is_cpu_only;
    std::vector<std::vector<std::uint32_t>> successors;
    std::vector<int> predecessor_count;
    std::vector<std::vector<Incidence>> incidences;
    std::vector<double> transfer_time;
    std::vector<std::int32_t> destination_count;
    std::vector<std::uint64_t> key;  // Zobrist
    std::vector<std::uint64_t> everything;
    std::uint64_t everything_hash = 0;
    double total_work = 0, total_memory = 0;
    std::int32_t cpu_only_total = 0;
    bool has_memory_limit = false;
    double least_cpu_slowness = 1;

private:
    struct Piece {
        double cpu, gain;
    };
    static double knapsack(const std::vector<Piece>& pieces, double room);
    std::vector<Piece> by_work, by_memory;  // most gain per CPU time first
};

}  // namespace partition
