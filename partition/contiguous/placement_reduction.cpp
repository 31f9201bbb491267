#include "partition/contiguous/placement_reduction.h"

#include <algorithm>
#include <map>
#include <set>

#include "partition/reader/components.h"

namespace partition {

ReducedPlacement reduce(const PlacementProblem& problem, const std::vector<char>& stays) {
    const std::size_t n = problem.items.size();
    std::vector<std::set<int>> before(n), after(n), sends_to(n), receives_from(n);
    for (auto [a, b] : problem.precedence) {
        after[static_cast<std::size_t>(a)].insert(b);
        before[static_cast<std::size_t>(b)].insert(a);
    }
    for (const Transfer& transfer : problem.transfers)
        for (int d : transfer.destinations) {
            sends_to[static_cast<std::size_t>(transfer.source)].insert(d);
            receives_from[static_cast<std::size_t>(d)].insert(transfer.source);
        }
    auto within = [](const std::set<int>& set, int only) {
        return set.empty() || (set.size() == 1 && *set.begin() == only);
    };
    std::vector<int> home(n);
    for (std::size_t i = 0; i < n; ++i) home[i] = static_cast<int>(i);
    std::vector<char> has_work(n);
    for (std::size_t i = 0; i < n; ++i)
        has_work[i] = problem.items[i].accelerator_time.value > 0 || problem.items[i].cpu_time.value > 0 ||
                      !problem.items[i].runs_on_accelerator || (!stays.empty() && stays[i]);

    auto merge = [&](int v, int u) {
        auto rename = [&](std::vector<std::set<int>>& mine, std::vector<std::set<int>>& mirror) {
            for (int other : mine[static_cast<std::size_t>(v)]) {
                mirror[static_cast<std::size_t>(other)].erase(v);
                if (other == u) continue;
                mirror[static_cast<std::size_t>(other)].insert(u);
                mine[static_cast<std::size_t>(u)].insert(other);
            }
            mine[static_cast<std::size_t>(v)].clear();
        };
        rename(before, after);
        rename(after, before);
        rename(sends_to, receives_from);
        rename(receives_from, sends_to);
        home[static_cast<std::size_t>(v)] = u;
    };
    ReducedPlacement reduced;
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (std::size_t i = 0; i < n; ++i) {
            if (has_work[i] || home[i] != static_cast<int>(i)) continue;
            int v = static_cast<int>(i), target = -1;
            if (after[i].size() == 1 && within(receives_from[i], *after[i].begin()) &&
                within(sends_to[i], *after[i].begin()))
                target = *after[i].begin();
            else if (before[i].size() == 1 && within(sends_to[i], *before[i].begin()) &&
                     within(receives_from[i], *before[i].begin()))
                target = *before[i].begin();
            else if (before[i].empty() && !after[i].empty() && sends_to[i].empty() &&
                     receives_from[i].empty()) {
                // Successors in topological order: the smallest number has none of the others before it, but
                // need not be before them. Only the constraint goes; the item is put back into the first
                // stage, which is a downset with it.
                for (int s : after[i]) before[static_cast<std::size_t>(s)].erase(v);
                after[i].clear();
                home[i] = -1;
                has_changed = true;
                reduced.moved_memory += problem.items[i].memory + problem.items[i].activations;
                continue;
            }
            if (target < 0) continue;
            merge(v, target);
            reduced.moved_memory += problem.items[i].memory + problem.items[i].activations;
            has_changed = true;
        }
    }

    // New numbers in a topological order.
    std::vector<int> kept;
    std::vector<int> position(n, -1);
    for (std::size_t i = 0; i < n; ++i)
        if (home[i] == static_cast<int>(i)) {
            position[i] = static_cast<int>(kept.size());
            kept.push_back(static_cast<int>(i));
        }
    std::vector<std::pair<int, int>> edges;
    for (int i : kept)
        for (int s : after[static_cast<std::size_t>(i)])
            edges.emplace_back(position[static_cast<std::size_t>(i)], position[static_cast<std::size_t>(s)]);
    std::vector<int> component(kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) component[i] = static_cast<int>(i);
    std::vector<int> number = topological_numbers(component, edges);
    auto final_item = [&](std::size_t i) {
        int at = static_cast<int>(i);
        while (at >= 0 && home[static_cast<std::size_t>(at)] != at) at = home[static_cast<std::size_t>(at)];
        return at < 0 ? -1 : number[static_cast<std::size_t>(position[static_cast<std::size_t>(at)])];
    };
    reduced.problem.accelerators = problem.accelerators;
    reduced.problem.cpus = problem.cpus;
    reduced.problem.memory_limit = problem.memory_limit;
    reduced.problem.devices = problem.devices;
    reduced.problem.micro_batches = problem.micro_batches;
    reduced.problem.items.resize(kept.size());
    reduced.members.resize(kept.size());
    reduced.own.resize(kept.size());
    for (std::size_t i = 0; i < n; ++i) {
        int f = final_item(i);
        if (f < 0) continue;
        PlacementItem& item = reduced.problem.items[static_cast<std::size_t>(f)];
        const PlacementItem& original = problem.items[i];
        item.nodes.insert(item.nodes.end(), original.nodes.begin(), original.nodes.end());
        item.accelerator_time += original.accelerator_time;
        item.cpu_time += original.cpu_time;
        item.memory += original.memory;
        item.activations += original.activations;
        item.runs_on_accelerator = item.runs_on_accelerator && original.runs_on_accelerator;
        reduced.members[static_cast<std::size_t>(f)].push_back(static_cast<int>(i));
        if (home[i] == static_cast<int>(i)) reduced.own[static_cast<std::size_t>(f)] = static_cast<int>(i);
    }
    for (auto& [a, b] : edges)
        reduced.problem.precedence.emplace_back(number[static_cast<std::size_t>(a)],
                                                number[static_cast<std::size_t>(b)]);
    std::sort(reduced.problem.precedence.begin(), reduced.problem.precedence.end());
    std::map<std::pair<int, std::vector<int>>, core::Seconds> merged;
    for (const Transfer& transfer : problem.transfers) {
        int source = final_item(static_cast<std::size_t>(transfer.source));
        std::set<int> destinations;
        for (int d : transfer.destinations) destinations.insert(final_item(static_cast<std::size_t>(d)));
        destinations.erase(source);
        if (!destinations.empty())
            merged[{source, std::vector<int>(destinations.begin(), destinations.end())}] += transfer.time;
    }
    for (const auto& [ends, time] : merged)
        reduced.problem.transfers.push_back({ends.first, ends.second, time});
    return reduced;
}

}  // namespace partition
