// Dynamic programming over sets of last nodes (closed under successors). A label of a set is a placement of
// it with all stages at most a threshold, told by the sum s of data-parallel degrees and the devices taken.
// Samples in flight on a stage are ceil(s / d), so s is all that a stage needs to know of what follows it.
// More of s or of devices is never better, so dominance leaves few labels.
//
// Within a stage the choice of configurations under the memory limit is a knapsack: fastest everywhere when
// that fits; else the linear relaxation bounds it from below, its rounding from above, and only a threshold
// between the two needs the exact frontier.
#include "partition/replicated/replicated_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "partition/deadline.h"
#include "partition/replicated/replicated_check.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_pairs = 150000;
constexpr int out_of_reach = std::numeric_limits<int>::max() / 2;  // devices; sums of two stay in range

bool is_subset(const std::vector<char>& a, const std::vector<char>& b) {
    for (std::size_t v = 0; v < a.size(); ++v)
        if (a[v] && !b[v]) return false;
    return true;
}

}  // namespace

ReplicatedSearch::ReplicatedSearch(const ReplicatedProblem& problem, const ReplicatedOptions& options)
    : problem_(problem),
      costs_(problem),
      memory_limit_(problem.memory_limit *
                    (1 + 1e-13)),  // sums of the same bytes in another order may end a rounding error apart:
                                   // what fits exactly must fit in every order
      deadline_(Clock::now(), options.time_limit, options.is_stopped) {
    most_replicas_ = std::min(problem.micro_batches, problem.devices);
    make_sets(options.most_downsets);
    lower_bound_ = replicated_lower_bound(problem).value;
    for (std::size_t p = 0; p < pairs_.size(); ++p) make_entries(p);
}

// Sets of last nodes, breadth first by size, and which lie in which; where they are too many, those of one
// topological order.
void ReplicatedSearch::make_sets(std::size_t most_downsets) {
    const std::size_t n = problem_.nodes.size();
    std::set<std::vector<char>> level{std::vector<char>(n, 0)};
    for (std::size_t size = 0; size <= n && covers_all_; ++size) {
        std::set<std::vector<char>> next;
        for (const std::vector<char>& set : level) {
            sets_.push_back(set);
            for (std::size_t v = 0; v < n; ++v) {
                if (set[v] || !costs_.may_lead(v, set)) continue;
                std::vector<char> with = set;
                with[v] = 1;
                next.insert(std::move(with));
            }
        }
        level = std::move(next);
        if (sets_.size() + level.size() > most_downsets) covers_all_ = false;
    }
    if (covers_all_ && make_pairs()) return;
    covers_all_ = false;
    sets_.assign(1, std::vector<char>(n, 0));
    for (std::size_t v = n; v-- > 0;) {
        sets_.push_back(sets_.back());
        sets_.back()[v] = 1;
    }
    make_pairs();
}

bool ReplicatedSearch::make_pairs() {
    pairs_.clear();
    for (std::size_t outer = 1; outer < sets_.size(); ++outer)
        for (std::size_t inner = 0; inner < outer; ++inner)
            if (is_subset(sets_[inner], sets_[outer])) {
                pairs_.push_back({inner, outer, 0, 0});
                if (pairs_.size() > most_pairs) return false;
            }
    return true;
}

void ReplicatedSearch::make_entries(std::size_t p) {
    Pair& pair = pairs_[p];
    pair.first_entry = entries_.size();
    const std::vector<std::size_t> nodes = nodes_of(pair);
    std::vector<char> inside(problem_.nodes.size(), 0);
    for (std::size_t v : nodes) inside[v] = 1;
    std::set<int> degrees;
    for (const auto& [tensor, list] : problem_.nodes[nodes[0]].configurations) degrees.insert(tensor);
    for (int tensor : degrees) {
        bool is_supported = tensor <= problem_.devices;
        for (std::size_t v : nodes) {
            auto found = problem_.nodes[v].configurations.find(tensor);
            is_supported =
                is_supported && found != problem_.nodes[v].configurations.end() && !found->second.empty();
        }
        if (!is_supported) continue;
        for (int data = 1; data <= most_replicas_ && data * tensor <= problem_.devices; ++data) {
            if (problem_.micro_batches % data != 0) continue;
            const Entry entry = entry_of(p, nodes, inside, tensor, data);
            if (entry.most_any >= 1) entries_.push_back(entry);
        }
    }
    pair.last_entry = entries_.size();
}

ReplicatedSearch::Entry ReplicatedSearch::entry_of(std::size_t pair, const std::vector<std::size_t>& nodes,
                                                   const std::vector<char>& inside, int tensor,
                                                   int data) const {
    Entry entry{static_cast<std::uint32_t>(pair),
                static_cast<std::int16_t>(tensor),
                static_cast<std::int16_t>(data),
                0,
                0,
                0};
    const auto configurations = [&](std::size_t v) -> const std::vector<NodeConfiguration>& {
        return problem_.nodes[v].configurations.at(tensor);
    };
    double per_sample = 0, fixed = 0;
    for (std::size_t v : nodes) {
        ConfigurationCost best{core::Seconds(infinity), core::Bytes(0), core::Bytes(0)};
        for (const NodeConfiguration& configuration : configurations(v)) {
            const ConfigurationCost cost = costs_.of(v, configuration, data, inside);
            if (std::pair(cost.time, cost.per_sample) < std::pair(best.time, best.per_sample)) best = cost;
        }
        entry.least_time += best.time.value;
        per_sample += best.per_sample.value;
        fixed += best.fixed.value;
    }
    const int most = (most_replicas_ + data - 1) / data;
    auto fits_smallest = [&](int y) {
        double memory = 0;
        for (std::size_t v : nodes) {
            double least = infinity;
            for (const NodeConfiguration& c : configurations(v))
                least = std::min(least, c.memory_per_sample.value * y + c.memory_fixed.value);
            memory += least;
        }
        return memory <= memory_limit_.value;
    };
    if (fixed + per_sample <= memory_limit_.value)
        entry.most_fast = per_sample > 0 ? static_cast<std::int32_t>(std::min<double>(
                                               most, std::floor((memory_limit_.value - fixed) / per_sample)))
                                         : most;
    int low = entry.most_fast, high = most;
    while (low < high) {  // memory rises with samples in flight
        int middle = (low + high + 1) / 2;
        if (fits_smallest(middle)) low = middle;
        else high = middle - 1;
    }
    entry.most_any = low;
    return entry;
}

std::vector<std::size_t> ReplicatedSearch::nodes_of(const Pair& pair) const {
    std::vector<std::size_t> nodes;
    for (std::size_t v = 0; v < problem_.nodes.size(); ++v)
        if (sets_[pair.outer][v] && !sets_[pair.inner][v]) nodes.push_back(v);
    return nodes;
}

ConfigurationKnapsack ReplicatedSearch::knapsack(const Entry& entry, int in_flight) const {
    const std::vector<std::size_t> nodes = nodes_of(pairs_[entry.pair]);
    std::vector<char> inside(problem_.nodes.size(), 0);
    for (std::size_t v : nodes) inside[v] = 1;
    ConfigurationKnapsack knapsack;
    for (std::size_t v : nodes) {
        std::vector<ConfigurationKnapsack::Choice> choices;
        const auto& list = problem_.nodes[v].configurations.at(entry.tensor);
        for (std::size_t c = 0; c < list.size(); ++c) {
            const ConfigurationCost cost = costs_.of(v, list[c], entry.data, inside);
            choices.push_back({cost.time, cost.per_sample * in_flight + cost.fixed, c});
        }
        knapsack.add(std::move(choices));
    }
    return knapsack;
}

ReplicatedSearch::Bounds& ReplicatedSearch::bounds(std::size_t entry, int in_flight) {
    std::uint64_t key = static_cast<std::uint64_t>(entry) << 16 | static_cast<std::uint64_t>(in_flight);
    auto [entry_bounds, is_new] = bounds_.try_emplace(key);
    if (is_new) {
        auto [lower, upper] = knapsack(entries_[entry], in_flight).bounds(memory_limit_);
        entry_bounds->second = {lower.value, upper.value, lower.value >= upper.value * (1 - 1e-13), false};
    }
    return entry_bounds->second;
}

// Can the entry's stage keep so many samples in flight and take at most the threshold, which is not below its
// fastest?
bool ReplicatedSearch::is_below(std::size_t e, int in_flight, double threshold, bool is_optimistic) {
    const Entry& entry = entries_[e];
    if (in_flight <= entry.most_fast) return true;
    if (in_flight > entry.most_any) return false;
    if (std::isinf(threshold)) return true;
    Bounds& time_bounds = bounds(e, in_flight);
    if (time_bounds.lower > threshold) return false;
    if (is_optimistic || time_bounds.upper <= threshold) return true;
    if (time_bounds.is_exact || time_bounds.is_open) return false;
    if (const auto time = knapsack(entry, in_flight).exact(memory_limit_, core::Seconds(time_bounds.upper))) {
        time_bounds.lower = time_bounds.upper = time->value;
        time_bounds.is_exact = true;
    } else {
        time_bounds.is_open = has_open_knapsacks_ = true;
    }
    return time_bounds.upper <= threshold;
}

// For every set the fewest devices that the nodes outside it take with stages below the threshold, memory
// aside.
std::vector<int> ReplicatedSearch::fewest_to_come(double threshold) const {
    std::vector<int> fewest(sets_.size(), out_of_reach);
    fewest.back() = 0;
    for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {  // by outer set, the largest first
        const int after = fewest[pair->outer];
        int& here = fewest[pair->inner];
        if (after >= here) continue;
        for (std::size_t e = pair->first_entry; e < pair->last_entry; ++e)
            if (entries_[e].least_time <= threshold)
                here = std::min(here, after + entries_[e].tensor * entries_[e].data);
    }
    return fewest;
}

std::optional<std::vector<ReplicatedStage>> ReplicatedSearch::decide(core::Seconds threshold,
                                                                     bool is_optimistic) {
    const std::vector<int> to_come = fewest_to_come(threshold.value);
    labels_.assign(sets_.size(), {});
    labels_[0].push_back({0, 0, 0, 0});
    for (const Pair& pair : pairs_) {
        const std::vector<Label>& from = labels_[pair.inner];
        const int left = problem_.devices - to_come[pair.outer];
        if (from.empty() || left < 1) continue;
        if (deadline_.has_passed()) {
            is_out_of_time_ = true;
            return std::nullopt;
        }
        std::vector<Label>& to = labels_[pair.outer];
        for (std::size_t e = pair.first_entry; e < pair.last_entry; ++e) {
            const Entry& entry = entries_[e];
            if (entry.least_time > threshold.value) continue;
            for (std::size_t w = 0; w < from.size(); ++w) {
                const Label label{from[w].replicas + entry.data, from[w].devices + entry.tensor * entry.data,
                                  static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(w)};
                if (label.devices > left || label.replicas > most_replicas_) continue;
                const auto dominates = [](const Label& a, const Label& b) {
                    return a.replicas <= b.replicas && a.devices <= b.devices;
                };
                if (std::any_of(to.begin(), to.end(),
                                [&](const Label& other) { return dominates(other, label); }))
                    continue;
                if (!is_below(e, (label.replicas + entry.data - 1) / entry.data, threshold.value,
                              is_optimistic))
                    continue;
                std::erase_if(to, [&](const Label& other) { return dominates(label, other); });
                to.push_back(label);
            }
        }
    }
    if (labels_.back().empty()) return std::nullopt;
    if (is_optimistic) return std::vector<ReplicatedStage>{};
    return trace_back();
}

std::vector<ReplicatedStage> ReplicatedSearch::trace_back() const {
    std::vector<ReplicatedStage> stages;
    const Label* label =
        &*std::min_element(labels_.back().begin(), labels_.back().end(),
                           [](const Label& a, const Label& b) { return a.replicas < b.replicas; });
    for (std::size_t set = sets_.size() - 1; set != 0;) {
        const Entry& entry = entries_[label->entry];
        const Pair& pair = pairs_[entry.pair];
        const ConfigurationKnapsack choices =
            knapsack(entry, (label->replicas + entry.data - 1) / entry.data);
        std::vector<std::size_t> chosen, better;
        auto [lower, upper] = choices.bounds(memory_limit_, &chosen);
        if (lower < upper)
            if (const auto time = choices.exact(memory_limit_, upper, &better); time && *time < upper)
                chosen = std::move(better);
        stages.push_back(evaluate_stage(problem_, nodes_of(pair), entry.data, entry.tensor, std::move(chosen),
                                        label->replicas - entry.data));
        set = pair.inner;
        label = &labels_[set][label->parent];
    }
    return stages;
}

}  // namespace partition
