#include "partition/contiguous/placement_reduction.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "partition/reader/components.h"

namespace partition {

namespace {

// Merges items into their neighbours until no rule of the header applies.
class ItemMerger {
public:
    ItemMerger(const PlacementProblem& problem, const std::vector<char>& stays)
        : problem_(problem),
          before_(problem.items.size()),
          after_(problem.items.size()),
          sends_to_(problem.items.size()),
          receives_from_(problem.items.size()),
          stays_(problem.items.size()),
          merged_into_(problem.items.size()) {
        for (auto [a, b] : problem.precedence) {
            after_[a].insert(b);
            before_[b].insert(a);
        }
        for (const Transfer& transfer : problem.transfers)
            for (std::size_t d : transfer.destinations) {
                sends_to_[transfer.source].insert(d);
                receives_from_[d].insert(transfer.source);
            }
        for (std::size_t i = 0; i < problem.items.size(); ++i) {
            const PlacementItem& item = problem.items[i];
            stays_[i] = item.accelerator_time.value > 0 || item.cpu_time.value > 0 ||
                        !item.runs_on_accelerator || (!stays.empty() && stays[i]);
            merged_into_[i] = i;
        }
    }

    void run() {
        for (bool has_changed = true; has_changed;) {
            has_changed = false;
            for (std::size_t i = 0; i < stays_.size(); ++i) has_changed = try_to_merge(i) || has_changed;
        }
    }

    const std::set<std::size_t>& after(std::size_t item) const { return after_[item]; }
    core::Bytes moved_memory() const { return moved_memory_; }
    bool is_merged(std::size_t item) const { return merged_into_[item] != item; }
    // The item that holds this one after all merges; none for an item that was freed of its order.
    std::optional<std::size_t> holder_of(std::size_t item) const {
        std::optional<std::size_t> at = item;
        while (at && merged_into_[*at] != *at) at = merged_into_[*at];
        return at;
    }

private:
    using Neighbours = std::vector<std::set<std::size_t>>;

    static bool is_within(const std::set<std::size_t>& set, std::size_t only) {
        return set.empty() || (set.size() == 1 && *set.begin() == only);
    }
    bool try_to_merge(std::size_t i) {
        if (stays_[i] || is_merged(i)) return false;
        if (after_[i].size() == 1 && is_within(receives_from_[i], *after_[i].begin()) &&
            is_within(sends_to_[i], *after_[i].begin())) {
            merge(i, *after_[i].begin());
        } else if (before_[i].size() == 1 && is_within(sends_to_[i], *before_[i].begin()) &&
                   is_within(receives_from_[i], *before_[i].begin())) {
            merge(i, *before_[i].begin());
        } else if (before_[i].empty() && !after_[i].empty() && sends_to_[i].empty() &&
                   receives_from_[i].empty()) {
            // Successors in topological order: the smallest number has none of the others before it, but
            // need not be before them. Only the constraint goes; the item is put back into the first stage,
            // which is a downset with it.
            for (std::size_t s : after_[i]) before_[s].erase(i);
            after_[i].clear();
            merged_into_[i] = std::nullopt;
        } else {
            return false;
        }
        moved_memory_ += problem_.items[i].memory + problem_.items[i].activations;
        return true;
    }
    void merge(std::size_t v, std::size_t u) {
        rename(v, u, before_, after_);
        rename(v, u, after_, before_);
        rename(v, u, sends_to_, receives_from_);
        rename(v, u, receives_from_, sends_to_);
        merged_into_[v] = u;
    }
    static void rename(std::size_t v, std::size_t u, Neighbours& mine, Neighbours& mirror) {
        for (std::size_t other : mine[v]) {
            mirror[other].erase(v);
            if (other == u) continue;
            mirror[other].insert(u);
            mine[u].insert(other);
        }
        mine[v].clear();
    }

    const PlacementProblem& problem_;
    Neighbours before_, after_, sends_to_, receives_from_;
    std::vector<char> stays_;
    std::vector<std::optional<std::size_t>> merged_into_;  // itself: not merged
    core::Bytes moved_memory_;
};

// Adds up transfers between the same items; those inside one item vanish.
std::vector<Transfer> merged_transfers(const PlacementProblem& problem,
                                       const std::vector<std::optional<std::size_t>>& reduced_item) {
    std::map<std::pair<std::size_t, std::vector<std::size_t>>, core::Seconds> merged;
    for (const Transfer& transfer : problem.transfers) {
        const std::optional<std::size_t> source = reduced_item[transfer.source];
        if (!source) continue;  // items freed of their order exchange nothing with others
        std::set<std::size_t> destinations;
        for (std::size_t d : transfer.destinations)
            if (reduced_item[d] && reduced_item[d] != source) destinations.insert(*reduced_item[d]);
        if (!destinations.empty())
            merged[{*source, {destinations.begin(), destinations.end()}}] += transfer.time;
    }
    std::vector<Transfer> transfers;
    for (const auto& [ends, time] : merged) transfers.push_back({ends.first, ends.second, time});
    return transfers;
}

}  // namespace

ReducedPlacement reduce(const PlacementProblem& problem, const std::vector<char>& stays) {
    const std::size_t n = problem.items.size();
    ItemMerger merger(problem, stays);
    merger.run();

    // New numbers in a topological order.
    std::vector<std::size_t> kept, position(n);
    for (std::size_t i = 0; i < n; ++i)
        if (!merger.is_merged(i)) {
            position[i] = kept.size();
            kept.push_back(i);
        }
    std::vector<Edge> edges;
    for (std::size_t i : kept)
        for (std::size_t s : merger.after(i)) edges.emplace_back(position[i], position[s]);
    std::vector<std::size_t> component(kept.size());
    std::iota(component.begin(), component.end(), std::size_t{0});
    const std::vector<std::size_t> number = topological_numbers(component, edges);
    std::vector<std::optional<std::size_t>> reduced_item(n);
    for (std::size_t i = 0; i < n; ++i)
        if (const auto holder = merger.holder_of(i)) reduced_item[i] = number[position[*holder]];

    ReducedPlacement reduced;
    reduced.moved_memory = merger.moved_memory();
    reduced.problem.accelerators = problem.accelerators;
    reduced.problem.cpus = problem.cpus;
    reduced.problem.memory_limit = problem.memory_limit;
    reduced.problem.devices = problem.devices;
    reduced.problem.micro_batches = problem.micro_batches;
    reduced.problem.items.resize(kept.size());
    reduced.members.resize(kept.size());
    reduced.own.resize(kept.size());
    for (std::size_t i = 0; i < n; ++i) {
        if (!reduced_item[i]) continue;
        PlacementItem& item = reduced.problem.items[*reduced_item[i]];
        const PlacementItem& original = problem.items[i];
        item.nodes.insert(item.nodes.end(), original.nodes.begin(), original.nodes.end());
        item.accelerator_time += original.accelerator_time;
        item.cpu_time += original.cpu_time;
        item.memory += original.memory;
        item.activations += original.activations;
        item.runs_on_accelerator = item.runs_on_accelerator && original.runs_on_accelerator;
        reduced.members[*reduced_item[i]].push_back(i);
        if (!merger.is_merged(i)) reduced.own[*reduced_item[i]] = i;
    }
    for (auto [a, b] : edges) reduced.problem.precedence.emplace_back(number[a], number[b]);
    std::sort(reduced.problem.precedence.begin(), reduced.problem.precedence.end());
    reduced.problem.transfers = merged_transfers(problem, reduced_item);
    return reduced;
}

}  // namespace partition
