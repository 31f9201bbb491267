// A stage is a pair of downsets, one inside the other. For every downset the pairs are tried cheapest test
// first: work, memory, inclusion, then transfers; each keeps the ways to reach it (devices used, largest
// load) that none other beats. O(downsets^2) word operations, and loads only for pairs that may be stages.
#include "partition/contiguous/lattice_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/diagnostics.h"
#include "partition/contiguous/downset_table.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Sums of differences may end a rounding error above the exact sum: the margin keeps bounds valid.
constexpr double margin = 1e-12;

struct LatticeWay {
    DevicesUsed used = 0;
    double value = 0;
    std::int32_t parent = -1, device_class = -1;
};

void offer(std::vector<LatticeWay>& ways, const LatticeWay& way) {
    for (const LatticeWay& known : ways)
        if (known.value <= way.value && is_within(known.used, way.used)) return;
    std::erase_if(ways, [&](const LatticeWay& known) {
        return way.value <= known.value && is_within(way.used, known.used);
    });
    ways.push_back(way);
}

}  // namespace

std::optional<DownsetLattice> downset_lattice(const PlacementProblem& problem, const SearchGraph& graph,
                                              std::size_t most) {
    DownsetLattice lattice;
    const std::size_t words = graph.words;
    std::vector<std::vector<int>> predecessors(graph.count);
    for (std::size_t i = 0; i < graph.count; ++i)
        for (int s : graph.successors[i])
            predecessors[static_cast<std::size_t>(s)].push_back(static_cast<int>(i));
    auto add = [&](const std::vector<std::uint64_t>& set, std::ptrdiff_t from, std::size_t item) {
        const auto of = [&](const auto& list) {
            return from < 0 ? typename std::decay_t<decltype(list)>::value_type{}
                            : list[static_cast<std::size_t>(from)];
        };
        lattice.bits.insert(lattice.bits.end(), set.begin(), set.end());
        const bool is_some = from >= 0;
        lattice.work.push_back(of(lattice.work) + (is_some ? graph.work[item] : 0));
        lattice.cpu_work.push_back(of(lattice.cpu_work) + (is_some ? graph.cpu_work[item] : 0));
        lattice.memory.push_back(of(lattice.memory) + (is_some ? graph.memory[item] : 0));
        lattice.activations.push_back(of(lattice.activations) + (is_some ? graph.activations[item] : 0));
        lattice.items.push_back(of(lattice.items) + is_some);
        lattice.cpu_only.push_back(of(lattice.cpu_only) + (is_some && graph.is_cpu_only[item]));
    };
    add(std::vector<std::uint64_t>(words, 0), -1, 0);
    std::unordered_multimap<std::uint64_t, std::size_t> known{{0, 0}};
    std::vector<std::uint64_t> hash{0}, set(words);
    for (std::size_t d = 0; d < lattice.size(); ++d) {
        for (std::size_t i = 0; i < graph.count; ++i) {
            const auto holds = [&](std::size_t item) {
                return (lattice.bits[d * words + item / 64] >> (item % 64) & 1) != 0;
            };
            if (holds(i) || !std::all_of(predecessors[i].begin(), predecessors[i].end(),
                                         [&](int p) { return holds(static_cast<std::size_t>(p)); }))
                continue;
            std::copy_n(lattice.bits.begin() + static_cast<std::ptrdiff_t>(d * words), words, set.begin());
            set[i / 64] |= std::uint64_t{1} << (i % 64);
            const std::uint64_t h = hash[d] ^ graph.key[i];
            const auto [begin, end] = known.equal_range(h);
            if (std::any_of(begin, end, [&](const auto& entry) {
                    return std::equal(
                        set.begin(), set.end(),
                        lattice.bits.begin() + static_cast<std::ptrdiff_t>(entry.second * words));
                }))
                continue;
            if (lattice.size() == most) return std::nullopt;
            known.emplace(h, lattice.size());
            hash.push_back(h);
            add(set, static_cast<std::ptrdiff_t>(d), i);
        }
    }
    lattice.torn.resize(lattice.size());
    for (std::size_t d = 0; d < lattice.size(); ++d)
        for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
            const auto holds = [&](int item) {
                return (lattice.bits[d * words + static_cast<std::size_t>(item) / 64] >> (item % 64) & 1) !=
                       0;
            };
            const bool is_inside = holds(problem.transfers[e].source);
            const std::vector<int>& ends = problem.transfers[e].destinations;
            if (std::any_of(ends.begin(), ends.end(), [&](int end) { return holds(end) != is_inside; }))
                lattice.torn[d].push_back(static_cast<std::int32_t>(e));
        }
    return lattice;
}

PassResult lattice_pass(const PlacementProblem& problem, const SearchGraph& graph,
                        const DownsetLattice& lattice, double threshold,
                        std::chrono::steady_clock::time_point deadline) {
    const std::size_t words = graph.words, count = lattice.size(), classes = graph.classes.size();
    const double most = std::isinf(threshold) ? threshold : std::nextafter(threshold, 0.0);
    const double cpu_can_take = graph.cpu_can_take(threshold), cpu_can_hold = graph.cpu_can_hold(threshold);
    // Below `most` no stage of accelerators does more work, holds more memory, or on a CPU takes longer.
    double work_limit = -1, memory_limit = -1, cpu_limit = -1;
    for (const DeviceClass& c : graph.classes) {
        if (c.count == 0) continue;
        if (c.is_cpu) {
            cpu_limit = std::max(cpu_limit, most / c.slowness * (1 + margin));
        } else {
            work_limit = std::max(work_limit, most / c.slowness * (1 + margin) + margin * graph.total_work);
            memory_limit =
                std::max(memory_limit, c.memory_limit.value * (1 + margin) + margin * graph.total_memory);
        }
    }
    std::vector<std::uint64_t> ends(problem.transfers.size() * words, 0);  // destinations
    for (std::size_t e = 0; e < problem.transfers.size(); ++e)
        for (int d : problem.transfers[e].destinations)
            ends[e * words + static_cast<std::size_t>(d) / 64] |= std::uint64_t{1} << (d % 64);

    PassResult result;
    std::vector<std::vector<LatticeWay>> ways(count);
    ways[0].push_back({});
    std::vector<std::size_t> reached{0};
    std::vector<std::uint64_t> stage(words);
    for (std::size_t to = 1; to < count; ++to) {
        if ((to & 63) == 0 && std::chrono::steady_clock::now() > deadline) {
            result.outcome = PassResult::Outcome::out_of_time;
            return result;
        }
        const std::uint64_t* outer = lattice.bits.data() + to * words;
        for (std::size_t from : reached) {
            const double work = lattice.work[to] - lattice.work[from],
                         kept = lattice.memory[to] - lattice.memory[from];
            const double cpu_work = lattice.cpu_work[to] - lattice.cpu_work[from],
                         activations = lattice.activations[to] - lattice.activations[from];
            const bool may_be_accelerator = work <= work_limit && kept + activations <= memory_limit &&
                                            lattice.cpu_only[to] == lattice.cpu_only[from];
            const bool may_be_cpu = cpu_work <= cpu_limit;
            if ((!may_be_accelerator && !may_be_cpu) || lattice.items[from] == lattice.items[to]) continue;
            const std::uint64_t* inner = lattice.bits.data() + from * words;
            bool is_inside = true;
            for (std::size_t w = 0; w < words && is_inside; ++w) is_inside = (inner[w] & ~outer[w]) == 0;
            if (!is_inside) continue;
            ++result.expanded;
            double paid = 0;
            if (may_be_accelerator) {
                for (std::size_t w = 0; w < words; ++w) stage[w] = outer[w] & ~inner[w];
                const auto pay = [&](std::int32_t e) {
                    const int source = problem.transfers[static_cast<std::size_t>(e)].source;
                    const bool sends =
                        (stage[static_cast<std::size_t>(source) / 64] >> (source % 64) & 1) != 0;
                    const std::uint64_t* list = ends.data() + static_cast<std::size_t>(e) * words;
                    for (std::size_t w = 0; w < words; ++w)
                        if (sends ? (list[w] & ~stage[w]) != 0 : (list[w] & stage[w]) != 0) {
                            paid += graph.transfer_time[static_cast<std::size_t>(e)];
                            return;
                        }
                };
                const std::vector<std::int32_t>&a = lattice.torn[from], &b = lattice.torn[to];
                for (std::size_t i = 0, j = 0;
                     i < a.size() || j < b.size();) {  // the union of two sorted lists
                    const std::int32_t e = j == b.size() || (i < a.size() && a[i] <= b[j]) ? a[i] : b[j];
                    pay(e);
                    i += i < a.size() && a[i] == e;
                    j += j < b.size() && b[j] == e;
                }
            }
            for (std::size_t c = 0; c < classes; ++c) {
                const DeviceClass& device = graph.classes[c];
                if (device.count == 0 || !(device.is_cpu ? may_be_cpu : may_be_accelerator)) continue;
                const double load = device.load(device.is_cpu ? cpu_work : work, paid);
                if (load > most) continue;
                for (const LatticeWay& way : ways[from]) {
                    if (used_of(way.used, c) >= device.count) continue;
                    const DevicesUsed used = way.used + one_of(c);
                    const int in_flight = std::min(graph.micro_batches, all_used(used));
                    if (!device.is_cpu &&
                        kept + activations * in_flight > device.memory_limit.value * (1 + 1e-14))
                        continue;
                    double room = margin * graph.total_work, memory_room = margin * graph.total_memory;
                    bool has_cpu_left = false;
                    for (std::size_t other = 0; other < classes; ++other) {
                        const int left = graph.classes[other].count - used_of(used, other);
                        if (left == 0) continue;
                        room += graph.classes[other].is_cpu ? left * cpu_can_take
                                                            : left * most / graph.classes[other].slowness;
                        memory_room +=
                            left * (graph.classes[other].is_cpu ? cpu_can_hold
                                                                : graph.classes[other].memory_limit.value);
                        has_cpu_left = has_cpu_left || graph.classes[other].is_cpu;
                    }
                    if (graph.total_work - lattice.work[to] > room ||
                        (!has_cpu_left && lattice.cpu_only[to] < graph.cpu_only_total))
                        continue;
                    if (graph.has_memory_limit &&
                        graph.total_memory - lattice.memory[to] - lattice.activations[to] > memory_room)
                        continue;
                    offer(ways[to], {used, std::max(way.value, load), static_cast<std::int32_t>(from),
                                     static_cast<std::int32_t>(c)});
                }
            }
        }
        if (!ways[to].empty()) reached.push_back(to);
    }
    if (ways[count - 1].empty()) return result;
    LatticeWay way = *std::min_element(ways[count - 1].begin(), ways[count - 1].end(),
                                       [](const LatticeWay& a, const LatticeWay& b) {
                                           return std::pair(a.value, a.used) < std::pair(b.value, b.used);
                                       });
    result.outcome = PassResult::Outcome::found;
    for (std::size_t at = count - 1; way.device_class >= 0;) {
        const auto from = static_cast<std::size_t>(way.parent);
        std::vector<int> items;
        for (std::size_t i = 0; i < graph.count; ++i)
            if ((lattice.bits[at * words + i / 64] & ~lattice.bits[from * words + i / 64]) >> (i % 64) & 1)
                items.push_back(static_cast<int>(i));
        result.stages.push_back(stage_of(problem, std::move(items), way.device_class,
                                         std::min(graph.micro_batches, all_used(way.used))));
        const DevicesUsed used = way.used - one_of(static_cast<std::size_t>(way.device_class));
        const auto before = std::find_if(ways[from].begin(), ways[from].end(), [&](const LatticeWay& w) {
            return w.used == used && w.value <= way.value;
        });
        core::require(before != ways[from].end(), "a stage's beginning is reached with one device less");
        way = *before;
        at = from;
    }
    std::reverse(result.stages.begin(), result.stages.end());
    result.value = largest_load(problem, result.stages).value;
    return result;
}

}  // namespace partition
