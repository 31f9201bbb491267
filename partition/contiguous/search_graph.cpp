#include "partition/contiguous/search_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "core/index/integers.h"
#include "core/random.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

SearchGraph::SearchGraph(const PlacementProblem& problem)
    : classes(device_classes(problem)),
      micro_batches(problem.micro_batches),
      count(problem.items.size()),
      words((count + 63) / 64),
      successors(count),
      predecessor_count(count, 0),
      incidences(count),
      everything(words, 0) {
    for (auto [before, after] : problem.precedence) {
        core::require(before < after, "items are in topological order");
        successors[before].push_back(static_cast<std::uint32_t>(after));
    }
    for (std::vector<std::uint32_t>& list : successors) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
        for (std::uint32_t s : list) ++predecessor_count[s];
    }
    bool has_cpu = false;
    for (const DeviceClass& c : classes) {
        memory_limit.push_back(c.is_cpu ? infinity : c.most_memory().value);
        if (c.count > 0 && std::isfinite(memory_limit.back())) has_memory_limit = true;
        if (!c.is_cpu || c.count == 0) continue;
        least_cpu_slowness = has_cpu ? std::min(least_cpu_slowness, c.slowness) : c.slowness;
        has_cpu = true;
    }
    for (const PlacementItem& item : problem.items) {
        const double kept = (item.memory + item.activations).value;
        work.push_back(item.runs_on_accelerator ? item.accelerator_time.value : 0);
        cpu_work.push_back(item.cpu_time.value);
        memory.push_back(item.memory.value);
        activations.push_back(item.activations.value);
        is_cpu_only.push_back(!item.runs_on_accelerator);
        total_work += work.back();
        total_memory += kept;
        cpu_only_total += !item.runs_on_accelerator;
        if (work.back() > 0) by_work.push_back({item.cpu_time.value, work.back()});
        if (kept > 0) by_memory.push_back({item.cpu_time.value, kept});
        key.push_back(core::mix64(key.size() + 1));
    }
    auto densest_first = [](const Piece& a, const Piece& b) { return a.gain * b.cpu > b.gain * a.cpu; };
    std::sort(by_work.begin(), by_work.end(), densest_first);
    std::sort(by_memory.begin(), by_memory.end(), densest_first);
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        const Transfer& transfer = problem.transfers[e];
        transfer_time.push_back(transfer.time.value);
        destination_count.push_back(core::count_of(transfer.destinations));
        incidences[transfer.source].push_back({static_cast<std::uint32_t>(e), true});
        for (std::size_t d : transfer.destinations)
            incidences[d].push_back({static_cast<std::uint32_t>(e), false});
    }
    // Last item first.
    below.assign(count * words, 0);
    work_below.assign(count, 0);
    for (std::size_t i = count; i-- > 0;) {
        std::uint64_t* mine = below.data() + i * words;
        mine[i / 64] |= std::uint64_t{1} << (i % 64);
        for (std::uint32_t s : successors[i])
            for (std::size_t w = 0; w < words; ++w) mine[w] |= below[s * words + w];
        for (std::size_t j = i; j < count; ++j)
            if (mine[j / 64] >> (j % 64) & 1) work_below[i] += work[j];
    }
    for (std::size_t i = 0; i < count; ++i) {
        everything[i / 64] |= std::uint64_t{1} << (i % 64);
        everything_hash ^= key[i];
    }
}

double SearchGraph::knapsack(const std::vector<Piece>& pieces, double room) {
    double taken = 0;
    for (const Piece& piece : pieces) {
        if (piece.cpu > room) {
            taken += room > 0 ? piece.gain * room / piece.cpu : 0;
            break;
        }
        room -= piece.cpu;
        taken += piece.gain;
    }
    return taken;
}

}  // namespace partition
