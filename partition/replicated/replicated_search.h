// Replicated stages below a time: the decision problem that bisection over the time turns into an optimum.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "partition/deadline.h"
#include "partition/replicated/configuration_knapsack.h"
#include "partition/replicated/replicated_cost.h"
#include "partition/replicated/replicated_placement.h"

namespace partition {

class ReplicatedSearch {
public:
    ReplicatedSearch(const ReplicatedProblem& problem, const ReplicatedOptions& options);

    // All sets of last nodes, not only those of one topological order: otherwise nothing is proven.
    bool covers_all_downsets() const { return covers_all_; }
    core::Seconds lower_bound() const { return core::Seconds(lower_bound_); }
    bool has_open_knapsacks() const { return has_open_knapsacks_; }
    bool is_out_of_time() const { return is_out_of_time_; }
    // Stages with every time at most `threshold`; nothing when there are none. `is_optimistic`: knapsacks by
    // their lower bounds (then only the verdict counts).
    std::optional<std::vector<ReplicatedStage>> decide(core::Seconds threshold, bool is_optimistic);

private:
    // One (stage, tensor, data). There are tens of millions in large problems: 24 bytes each.
    struct Entry {
        std::uint32_t pair;
        std::int16_t tensor, data;
        double least_time;                 // fastest configurations, memory ignored
        std::int32_t most_fast, most_any;  // samples in flight with which they, or the smallest ones, fit
    };
    struct Bounds {
        double lower, upper;
        bool is_exact, is_open;  // open: too long a frontier to know
    };
    // A placement of a set of last nodes that no other dominates, as in label-setting shortest paths.
    struct Label {
        std::int32_t replicas, devices;
        std::uint32_t entry, parent;  // the stage placed last, and the label of the set before it
    };
    struct Pair {
        std::size_t inner, outer;  // sets of last nodes
        std::size_t first_entry, last_entry;
    };

    void make_sets(std::size_t most_downsets);
    bool make_pairs();
    void make_entries(std::size_t pair);
    Entry entry_of(std::size_t pair, const std::vector<std::size_t>& nodes, const std::vector<char>& inside,
                   int tensor, int data) const;

    std::vector<std::size_t> nodes_of(const Pair& pair) const;
    ConfigurationKnapsack knapsack(const Entry& entry, int in_flight) const;
    Bounds& bounds(std::size_t entry, int in_flight);
    bool is_below(std::size_t entry, int in_flight, double threshold, bool is_optimistic);
    std::vector<int> fewest_to_come(double threshold) const;
    std::vector<ReplicatedStage> trace_back() const;

    const ReplicatedProblem& problem_;
    const ReplicatedCosts costs_;
    const core::Bytes memory_limit_;  // with a margin for the order of sums
    const Deadline deadline_;
    std::vector<std::vector<char>> sets_;  // closed under successors, by size
    std::vector<Pair> pairs_;              // by outer set
    std::vector<Entry> entries_;
    std::unordered_map<std::uint64_t, Bounds> bounds_;
    bool covers_all_ = true, has_open_knapsacks_ = false, is_out_of_time_ = false;
    double lower_bound_ = 0;
    std::vector<std::vector<Label>> labels_;  // of each set, none dominated by another
    int most_replicas_ = 1;
};

}  // namespace partition
