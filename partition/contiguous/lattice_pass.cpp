// A stage is a pair of downsets, one inside the other. For every downset the pairs are tried cheapest test
// first: work, memory, inclusion, then transfers. Each downset keeps its nondominated labels (devices used,
// largest load). O(downsets^2) word operations, and loads only for pairs that may be stages.
#include "partition/contiguous/lattice_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/errors.h"
#include "partition/contiguous/downset_table.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Sums of differences may end a rounding error above the exact sum: the margin keeps bounds valid.
constexpr double margin = 1e-12;
// What fills a device to the byte fits, in whatever order its bytes were added.
constexpr double rounding = 1e-14;

bool holds(const std::uint64_t* set, std::size_t item) { return (set[item / 64] >> (item % 64) & 1) != 0; }

// As Label, but the downset before the last stage is told by its position.
struct LatticeLabel {
    DevicesUsed used = 0;
    double value = 0;
    std::uint32_t parent = 0, device_class = no_class;
};

void offer(std::vector<LatticeLabel>& labels, const LatticeLabel& label) {
    for (const LatticeLabel& other : labels)
        if (other.value <= label.value && is_within(other.used, label.used)) return;
    std::erase_if(labels, [&](const LatticeLabel& other) {
        return label.value <= other.value && is_within(label.used, other.used);
    });
    labels.push_back(label);
}

// Appends the downset that adds an item to the one at `from`; `from` none: the empty one.
void append(DownsetLattice& lattice, const SearchGraph& graph, const std::vector<std::uint64_t>& set,
            std::optional<std::size_t> from, std::size_t item) {
    const auto before = [&](const auto& sums) {
        return from ? sums[*from] : typename std::decay_t<decltype(sums)>::value_type{};
    };
    lattice.bits.insert(lattice.bits.end(), set.begin(), set.end());
    lattice.work.push_back(before(lattice.work) + (from ? graph.work[item] : 0));
    lattice.cpu_work.push_back(before(lattice.cpu_work) + (from ? graph.cpu_work[item] : 0));
    lattice.memory.push_back(before(lattice.memory) + (from ? graph.memory[item] : 0));
    lattice.activations.push_back(before(lattice.activations) + (from ? graph.activations[item] : 0));
    lattice.items.push_back(before(lattice.items) + (from ? 1 : 0));
    lattice.cpu_only.push_back(before(lattice.cpu_only) + (from && graph.is_cpu_only[item] ? 1 : 0));
}

void list_torn_transfers(DownsetLattice& lattice, const PlacementProblem& problem, std::size_t words) {
    lattice.torn.resize(lattice.size());
    for (std::size_t d = 0; d < lattice.size(); ++d) {
        const std::uint64_t* set = lattice.bits.data() + d * words;
        for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
            const bool is_inside = holds(set, problem.transfers[e].source);
            const std::vector<std::size_t>& ends = problem.transfers[e].destinations;
            if (std::any_of(ends.begin(), ends.end(),
                            [&](std::size_t end) { return holds(set, end) != is_inside; }))
                lattice.torn[d].push_back(static_cast<std::uint32_t>(e));
        }
    }
}

}  // namespace

std::optional<DownsetLattice> downset_lattice(const PlacementProblem& problem, const SearchGraph& graph,
                                              std::size_t most) {
    DownsetLattice lattice;
    const std::size_t words = graph.words;
    std::vector<std::vector<std::size_t>> predecessors(graph.count);
    for (std::size_t i = 0; i < graph.count; ++i)
        for (std::uint32_t s : graph.successors[i]) predecessors[s].push_back(i);
    append(lattice, graph, std::vector<std::uint64_t>(words, 0), std::nullopt, 0);
    std::unordered_multimap<std::uint64_t, std::size_t> seen{{0, 0}};
    std::vector<std::uint64_t> hash{0}, set(words);
    for (std::size_t d = 0; d < lattice.size(); ++d) {
        for (std::size_t i = 0; i < graph.count; ++i) {
            const std::uint64_t* smaller = lattice.bits.data() + d * words;
            if (holds(smaller, i) || !std::all_of(predecessors[i].begin(), predecessors[i].end(),
                                                  [&](std::size_t p) { return holds(smaller, p); }))
                continue;
            std::copy_n(smaller, words, set.begin());
            set[i / 64] |= std::uint64_t{1} << (i % 64);
            const std::uint64_t h = hash[d] ^ graph.key[i];
            const auto [begin, end] = seen.equal_range(h);
            if (std::any_of(begin, end, [&](const auto& entry) {
                    return std::equal(set.begin(), set.end(), lattice.bits.data() + entry.second * words);
                }))
                continue;
            if (lattice.size() == most) return std::nullopt;
            seen.emplace(h, lattice.size());
            hash.push_back(h);
            append(lattice, graph, set, d, i);
        }
    }
    list_torn_transfers(lattice, problem, words);
    return lattice;
}

namespace {

class LatticePass {
public:
    LatticePass(const PlacementProblem& problem, const SearchGraph& graph, const DownsetLattice& lattice,
                double threshold)
        : problem_(problem),
          graph_(graph),
          lattice_(lattice),
          words_(graph.words),
          most_(std::isinf(threshold) ? threshold : std::nextafter(threshold, 0.0)),
          cpu_can_take_(graph.cpu_can_take(threshold)),
          cpu_can_hold_(graph.cpu_can_hold(threshold)),
          labels_(lattice.size()),
          stage_(words_) {
        for (std::size_t i = 0; i < graph.classes.size(); ++i) {
            const DeviceClass& c = graph.classes[i];
            if (c.count == 0) continue;
            if (c.is_cpu) {
                most_cpu_work_ = std::max(most_cpu_work_, most_ / c.slowness * (1 + margin));
                continue;
            }
            most_work_ = std::max(most_work_, most_ / c.slowness * (1 + margin) + margin * graph.total_work);
            most_memory_ =
                std::max(most_memory_, graph.memory_limit[i] * (1 + margin) + margin * graph.total_memory);
        }
        destinations_.assign(problem.transfers.size() * words_, 0);
        for (std::size_t e = 0; e < problem.transfers.size(); ++e)
            for (std::size_t d : problem.transfers[e].destinations)
                destinations_[e * words_ + d / 64] |= std::uint64_t{1} << (d % 64);
    }

    PassResult run(const Deadline& deadline) {
        labels_[0].push_back({});
        std::vector<std::size_t> reached{0};
        for (std::size_t to = 1; to < lattice_.size(); ++to) {
            if ((to & 63) == 0 && deadline.has_passed()) {
                result_.outcome = PassResult::Outcome::out_of_time;
                return std::move(result_);
            }
            for (std::size_t from : reached) try_stage(from, to);
            if (!labels_[to].empty()) reached.push_back(to);
        }
        if (!labels_.back().empty()) trace_back();
        return std::move(result_);
    }

private:
    // Sums of what lies between two downsets.
    struct Stage {
        std::size_t from, to;
        double work, cpu_work, memory, activations;
    };

    void try_stage(std::size_t from, std::size_t to) {
        const Stage stage{from,
                          to,
                          lattice_.work[to] - lattice_.work[from],
                          lattice_.cpu_work[to] - lattice_.cpu_work[from],
                          lattice_.memory[to] - lattice_.memory[from],
                          lattice_.activations[to] - lattice_.activations[from]};
        const bool may_be_accelerator = stage.work <= most_work_ &&
                                        stage.memory + stage.activations <= most_memory_ &&
                                        lattice_.cpu_only[to] == lattice_.cpu_only[from];
        const bool may_be_cpu = stage.cpu_work <= most_cpu_work_;
        if ((!may_be_accelerator && !may_be_cpu) || lattice_.items[from] == lattice_.items[to]) return;
        const std::uint64_t* outer = lattice_.bits.data() + to * words_;
        const std::uint64_t* inner = lattice_.bits.data() + from * words_;
        for (std::size_t w = 0; w < words_; ++w)
            if ((inner[w] & ~outer[w]) != 0) return;
        ++result_.expanded;
        double paid = 0;
        if (may_be_accelerator) {
            for (std::size_t w = 0; w < words_; ++w) stage_[w] = outer[w] & ~inner[w];
            paid = paid_transfers(lattice_.torn[from], lattice_.torn[to]);
        }
        for (std::size_t c = 0; c < graph_.classes.size(); ++c) {
            const DeviceClass& device = graph_.classes[c];
            if (device.count == 0 || !(device.is_cpu ? may_be_cpu : may_be_accelerator)) continue;
            const double load = device.load(device.is_cpu ? stage.cpu_work : stage.work, paid);
            if (load <= most_) extend_labels(stage, c, load);
        }
    }

    // Of stage_: transfers that it sends or receives are torn by the downset before it or by the one after
    // it.
    double paid_transfers(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) const {
        double paid = 0;
        for (std::size_t i = 0, j = 0; i < a.size() || j < b.size();) {  // the union of two sorted lists
            const std::uint32_t e = j == b.size() || (i < a.size() && a[i] <= b[j]) ? a[i] : b[j];
            const bool sends = holds(stage_.data(), problem_.transfers[e].source);
            const std::uint64_t* ends = destinations_.data() + e * words_;
            for (std::size_t w = 0; w < words_; ++w)
                if (sends ? (ends[w] & ~stage_[w]) != 0 : (ends[w] & stage_[w]) != 0) {
                    paid += graph_.transfer_time[e];
                    break;
                }
            i += i < a.size() && a[i] == e;
            j += j < b.size() && b[j] == e;
        }
        return paid;
    }

    void extend_labels(const Stage& stage, std::size_t device_class, double load) {
        const DeviceClass& device = graph_.classes[device_class];
        for (const LatticeLabel& label : labels_[stage.from]) {
            if (used_of(label.used, device_class) >= device.count) continue;
            const DevicesUsed used = label.used + one_of(device_class);
            const int in_flight = std::min(graph_.micro_batches, all_used(used));
            if (!device.is_cpu && stage.memory + stage.activations * in_flight >
                                      graph_.memory_limit[device_class] * (1 + rounding))
                continue;
            if (!may_complete(used, stage.to)) continue;
            offer(labels_[stage.to],
                  {used, std::max(label.value, load), static_cast<std::uint32_t>(stage.from),
                   static_cast<std::uint32_t>(device_class)});
        }
    }

    // Can the devices left take what lies behind the downset?
    bool may_complete(DevicesUsed used, std::size_t downset) const {
        double room = margin * graph_.total_work, memory_room = margin * graph_.total_memory;
        bool has_cpu_left = false;
        for (std::size_t c = 0; c < graph_.classes.size(); ++c) {
            const DeviceClass& device = graph_.classes[c];
            const int left = device.count - used_of(used, c);
            if (left == 0) continue;
            room += device.is_cpu ? left * cpu_can_take_ : left * most_ / device.slowness;
            memory_room += left * (device.is_cpu ? cpu_can_hold_ : graph_.memory_limit[c]);
            has_cpu_left = has_cpu_left || device.is_cpu;
        }
        if (graph_.total_work - lattice_.work[downset] > room ||
            (!has_cpu_left && lattice_.cpu_only[downset] < graph_.cpu_only_total))
            return false;
        return !graph_.has_memory_limit ||
               graph_.total_memory - lattice_.memory[downset] - lattice_.activations[downset] <= memory_room;
    }

    void trace_back() {
        LatticeLabel label = *std::min_element(
            labels_.back().begin(), labels_.back().end(), [](const LatticeLabel& a, const LatticeLabel& b) {
                return std::pair(a.value, a.used) < std::pair(b.value, b.used);
            });
        result_.outcome = PassResult::Outcome::found;
        for (std::size_t at = lattice_.size() - 1; label.device_class != no_class;) {
            const std::size_t from = label.parent;
            std::vector<std::size_t> items;
            for (std::size_t i = 0; i < graph_.count; ++i)
                if (holds(lattice_.bits.data() + at * words_, i) &&
                    !holds(lattice_.bits.data() + from * words_, i))
                    items.push_back(i);
            result_.stages.push_back(stage_of(problem_, std::move(items), label.device_class,
                                              std::min(graph_.micro_batches, all_used(label.used))));
            const DevicesUsed used = label.used - one_of(label.device_class);
            const auto before = std::find_if(
                labels_[from].begin(), labels_[from].end(),
                [&](const LatticeLabel& other) { return other.used == used && other.value <= label.value; });
            core::require(before != labels_[from].end(),
                          "a stage's beginning is reached with one device less");
            label = *before;
            at = from;
        }
        std::reverse(result_.stages.begin(), result_.stages.end());
        result_.value = largest_load(problem_, result_.stages).value;
    }

    const PlacementProblem& problem_;
    const SearchGraph& graph_;
    const DownsetLattice& lattice_;
    const std::size_t words_;
    const double most_;  // load of a stage: below the threshold
    const double cpu_can_take_, cpu_can_hold_;
    // With loads up to `most_` no stage of accelerators does more work or holds more memory, and none of a
    // CPU takes longer. Negative without such devices.
    double most_work_ = -infinity, most_memory_ = -infinity, most_cpu_work_ = -infinity;
    std::vector<std::uint64_t> destinations_;  // of each transfer, `words_` each
    std::vector<std::vector<LatticeLabel>> labels_;
    std::vector<std::uint64_t> stage_;  // the items between the two downsets being tried
    PassResult result_;
};

}  // namespace

PassResult lattice_pass(const PlacementProblem& problem, const SearchGraph& graph,
                        const DownsetLattice& lattice, double threshold, const Deadline& deadline) {
    return LatticePass(problem, graph, lattice, threshold).run(deadline);
}

}  // namespace partition
