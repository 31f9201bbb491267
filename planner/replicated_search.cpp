// For every set of last nodes and every sum s of data-parallel degrees so far, the fewest devices with all stages at most a threshold. Samples in flight on a stage
// are ceil(s / d), so s is all that a stage needs to know of what follows it.
//
// Within a stage the choice of configurations under the memory limit is a knapsack: fastest everywhere when that fits; else the linear relaxation bounds it
// from below, its rounding from above, and only a threshold between the two needs the exact frontier.
#include "planner/replicated_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace planner {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_pairs = 150000;

bool is_subset(const std::vector<char>& a, const std::vector<char>& b) {
    for (std::size_t v = 0; v < a.size(); ++v)
        if (a[v] && !b[v]) return false;
    return true;
}

}  // namespace

ReplicatedSearch::ReplicatedSearch(const ReplicatedProblem& problem, const ReplicatedOptions& options)
    : problem_(problem), costs_(problem),
      memory_limit_(problem.memory_limit * (1 + 1e-13))  // sums of the same bytes in another order may end a rounding error apart: what fits exactly must fit in every order
{
    deadline_ = options.time_limit.value < 1e8
                    ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit.value))
                    : Clock::time_point::max();
    most_replicas_ = std::min(problem.micro_batches, problem.devices);
    make_sets(options.most_downsets);
    bound();
    for (std::size_t p = 0; p < pairs_.size(); ++p) make_entries(p);
}

// Sets of last nodes, breadth first by size, and which lie in which; where they are too many, those of one topological order.
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
                pairs_.push_back({static_cast<std::int32_t>(inner), static_cast<std::int32_t>(outer), 0, 0});
                if (pairs_.size() > most_pairs) return false;
            }
    return true;
}

// No placement beats perfect balance of every node's cheapest way, nor the fastest single node.
void ReplicatedSearch::bound() {
    std::vector<double> least_works;
    double work = 0;
    for (const ConfigurableNode& node : problem_.nodes) {
        double least_work = infinity, least_time = infinity;
        for (const auto& [tensor, list] : node.configurations)
            for (const NodeConfiguration& c : list) {
                least_work = std::min(least_work, tensor * c.time_per_sample.value);
                for (int d = 1; d <= most_replicas_ && d * tensor <= problem_.devices; ++d)
                    if (problem_.micro_batches % d == 0) least_time = std::min(least_time, c.time_per_sample.value / d);
            }
        work += least_work;
        least_works.push_back(least_work);
        lower_bound_ = std::max(lower_bound_, least_time);
    }
    lower_bound_ = std::max(lower_bound_, work / problem_.devices);
    for (const std::vector<char>& set : sets_) {
        double left = 0;
        for (std::size_t v = 0; v < set.size(); ++v)
            if (!set[v]) left += least_works[v];
        work_left_.push_back(left);
    }
}

void ReplicatedSearch::make_entries(std::size_t p) {
    Pair& pair = pairs_[p];
    pair.first_entry = entries_.size();
    const std::vector<int> nodes = nodes_of(pair);
    std::vector<char> inside(problem_.nodes.size(), 0);
    for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
    std::set<int> degrees;
    for (const auto& [tensor, list] : problem_.nodes[static_cast<std::size_t>(nodes[0])].configurations) degrees.insert(tensor);
    for (int tensor : degrees) {
        bool is_supported = tensor <= problem_.devices;
        for (int v : nodes) {
            auto found = problem_.nodes[static_cast<std::size_t>(v)].configurations.find(tensor);
            is_supported = is_supported && found != problem_.nodes[static_cast<std::size_t>(v)].configurations.end() && !found->second.empty();
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

ReplicatedSearch::Entry ReplicatedSearch::entry_of(std::size_t pair, const std::vector<int>& nodes, const std::vector<char>& inside, int tensor, int data) const {
    Entry entry{static_cast<std::int32_t>(pair), static_cast<std::int16_t>(tensor), static_cast<std::int16_t>(data), 0, 0, 0};
    const auto configurations = [&](int v) -> const std::vector<NodeConfiguration>& { return problem_.nodes[static_cast<std::size_t>(v)].configurations.at(tensor); };
    double per_sample = 0, fixed = 0;
    for (int v : nodes) {
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
        for (int v : nodes) {
            double least = infinity;
            for (const NodeConfiguration& c : configurations(v)) least = std::min(least, c.memory_per_sample.value * y + c.memory_fixed.value);
            memory += least;
        }
        return memory <= memory_limit_.value;
    };
    if (fixed + per_sample <= memory_limit_.value)
        entry.most_fast = per_sample > 0 ? static_cast<std::int32_t>(std::min<double>(most, std::floor((memory_limit_.value - fixed) / per_sample))) : most;
    int low = entry.most_fast, high = most;
    while (low < high) {  // memory rises with samples in flight
        int middle = (low + high + 1) / 2;
        if (fits_smallest(middle)) low = middle;
        else high = middle - 1;
    }
    entry.most_any = low;
    return entry;
}

std::vector<int> ReplicatedSearch::nodes_of(const Pair& pair) const {
    std::vector<int> nodes;
    for (std::size_t v = 0; v < problem_.nodes.size(); ++v)
        if (sets_[static_cast<std::size_t>(pair.outer)][v] && !sets_[static_cast<std::size_t>(pair.inner)][v]) nodes.push_back(static_cast<int>(v));
    return nodes;
}

ConfigurationKnapsack ReplicatedSearch::knapsack(const Entry& entry, int in_flight) const {
    std::vector<int> nodes = nodes_of(pairs_[static_cast<std::size_t>(entry.pair)]);
    std::vector<char> inside(problem_.nodes.size(), 0);
    for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
    ConfigurationKnapsack knapsack;
    for (int v : nodes) {
        std::vector<ConfigurationKnapsack::Choice> choices;
        const auto& list = problem_.nodes[static_cast<std::size_t>(v)].configurations.at(entry.tensor);
        for (std::size_t c = 0; c < list.size(); ++c) {
            const ConfigurationCost cost = costs_.of(v, list[c], entry.data, inside);
            choices.push_back({cost.time, cost.per_sample * in_flight + cost.fixed, static_cast<int>(c)});
        }
        knapsack.add(std::move(choices));
    }
    return knapsack;
}

const ReplicatedSearch::Bounds& ReplicatedSearch::bounds(std::size_t entry, int in_flight) {
    std::uint64_t key = static_cast<std::uint64_t>(entry) << 16 | static_cast<std::uint64_t>(in_flight);
    auto [place, is_new] = bounds_.try_emplace(key);
    if (is_new) {
        auto [lower, upper] = knapsack(entries_[entry], in_flight).bounds(memory_limit_);
        place->second = {lower.value, upper.value, lower.value >= upper.value * (1 - 1e-13)};
    }
    return place->second;
}

int ReplicatedSearch::most_in_flight(std::size_t e, double threshold, bool is_optimistic) {
    const Entry& entry = entries_[e];
    if (entry.least_time > threshold) return 0;
    int low = entry.most_fast, high = entry.most_any;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        Bounds known = bounds(e, middle);
        if (!known.is_exact && known.lower <= threshold && threshold < known.upper) {
            if (const auto time = knapsack(entry, middle).exact(memory_limit_, core::Seconds(known.upper))) {
                known = {time->value, time->value, true};
                bounds_[static_cast<std::uint64_t>(e) << 16 | static_cast<std::uint64_t>(middle)] = known;
            } else {
                has_open_knapsacks_ = true;
            }
        }
        if ((is_optimistic ? known.lower : known.upper) <= threshold) low = middle;
        else high = middle - 1;
    }
    return low;
}

std::optional<std::vector<ReplicatedStage>> ReplicatedSearch::decide(core::Seconds threshold, bool is_optimistic) {
    const std::size_t width = static_cast<std::size_t>(most_replicas_) + 1;
    constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> fewest(sets_.size() * width, none), parent(sets_.size() * width, -1);
    std::vector<std::int32_t> last(sets_.size(), -1);  // largest s reached
    fewest[0] = 0;
    last[0] = 0;
    // Below the threshold a device does at most so much work per sample: what is left for later stages bounds the devices so far.
    std::vector<std::int32_t> most_used(sets_.size());
    for (std::size_t set = 0; set < sets_.size(); ++set)
        most_used[set] = problem_.devices - static_cast<std::int32_t>(std::min(1e9, std::ceil(work_left_[set] / threshold.value * (1 - 1e-12))));
    for (const Pair& pair : pairs_) {
        if (last[static_cast<std::size_t>(pair.inner)] < 0 || most_used[static_cast<std::size_t>(pair.outer)] < 1) continue;
        if (Clock::now() > deadline_) {
            is_out_of_time_ = true;
            return std::nullopt;
        }
        const std::int32_t* from = fewest.data() + static_cast<std::size_t>(pair.inner) * width;
        std::int32_t* to = fewest.data() + static_cast<std::size_t>(pair.outer) * width;
        for (std::size_t e = pair.first_entry; e < pair.last_entry; ++e) {
            const Entry& entry = entries_[e];
            if (entry.least_time > threshold.value) continue;
            const std::int32_t added = entry.tensor * entry.data, room = most_used[static_cast<std::size_t>(pair.outer)] - added;
            if (room < 0) continue;
            int most = most_in_flight(e, threshold.value, is_optimistic);
            int last_s = std::min({most * entry.data, most_replicas_}) - entry.data;
            last_s = std::min(last_s, last[static_cast<std::size_t>(pair.inner)]);
            for (int s = 0; s <= last_s; ++s) {
                if (from[s] == none || from[s] > room) continue;
                if (from[s] + added < to[s + entry.data]) {
                    to[s + entry.data] = from[s] + added;
                    parent[static_cast<std::size_t>(pair.outer) * width + static_cast<std::size_t>(s + entry.data)] = static_cast<std::int32_t>(e);
                    last[static_cast<std::size_t>(pair.outer)] = std::max(last[static_cast<std::size_t>(pair.outer)], s + entry.data);
                }
            }
        }
    }
    const std::int32_t* whole = fewest.data() + (sets_.size() - 1) * width;
    const std::size_t replicas = static_cast<std::size_t>(std::find_if(whole, whole + width, [](std::int32_t devices) { return devices != none; }) - whole);
    if (replicas == width) return std::nullopt;
    if (is_optimistic) return std::vector<ReplicatedStage>{};
    return trace_back(parent, replicas);
}

std::vector<ReplicatedStage> ReplicatedSearch::trace_back(const std::vector<std::int32_t>& parent, std::size_t replicas) const {
    const std::size_t width = static_cast<std::size_t>(most_replicas_) + 1;
    std::vector<ReplicatedStage> stages;
    for (std::size_t set = sets_.size() - 1, s = replicas; set != 0;) {
        const Entry& entry = entries_[static_cast<std::size_t>(parent[set * width + s])];
        const Pair& pair = pairs_[static_cast<std::size_t>(entry.pair)];
        int in_flight = (static_cast<int>(s) + entry.data - 1) / entry.data;
        const ConfigurationKnapsack choices = knapsack(entry, in_flight);
        std::vector<int> chosen, better;
        auto [lower, upper] = choices.bounds(memory_limit_, &chosen);
        if (lower < upper)
            if (const auto time = choices.exact(memory_limit_, upper, &better); time && *time < upper) chosen = std::move(better);
        stages.push_back(evaluate_stage(problem_, nodes_of(pair), entry.data, entry.tensor, std::move(chosen), static_cast<int>(s) - entry.data));
        s -= static_cast<std::size_t>(entry.data);
        set = static_cast<std::size_t>(pair.inner);
    }
    return stages;
}

}  // namespace planner
