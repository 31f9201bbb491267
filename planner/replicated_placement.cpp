// A threshold T on the stage time turns the problem into fewest devices: for every set of last nodes and every sum s of data-parallel degrees so far, the
// fewest devices with all stages at most T. Samples in flight on a stage are ceil(s / d), so s is all that a stage needs to know of what follows it. Bisection
// over T, each success replaced by its true largest time, ends when nothing below the best is possible.
//
// Within a stage the choice of configurations under the memory limit is a knapsack: fastest everywhere when that fits; else the linear relaxation bounds it
// from below, its rounding from above, and only a threshold between the two needs the exact frontier.
#include "planner/replicated_placement.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace planner {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_frontier_points = 4000;  // beyond, the knapsack keeps its two bounds
constexpr std::size_t most_pairs = 150000;

// Sums of the same bytes in another order may end a rounding error apart: what fits exactly must fit in every order.
double with_margin(core::Bytes limit) { return limit.value * (1 + 1e-13); }

struct Cost {
    double time, per_sample, fixed;  // seconds, bytes, bytes
    int index;
};

// Cost of one node's configuration in a stage that holds `inside`.
Cost cost_of(const ReplicatedProblem& problem, const std::vector<std::vector<int>>& incoming, const std::vector<std::vector<int>>& outgoing, int node,
             const NodeConfiguration& configuration, int index, int data, const std::vector<char>& inside) {
    double bytes = 0;
    auto extra = [](const std::map<int, core::Bytes>& list, int neighbour) {
        auto found = list.find(neighbour);
        return found == list.end() ? 0.0 : found->second.value;
    };
    for (int e : incoming[static_cast<std::size_t>(node)]) {
        int from = problem.edges[static_cast<std::size_t>(e)].from;
        if (!inside[static_cast<std::size_t>(from)]) bytes += problem.edges[static_cast<std::size_t>(e)].bytes.value + extra(configuration.receive_from, from);
    }
    for (int e : outgoing[static_cast<std::size_t>(node)]) {
        int to = problem.edges[static_cast<std::size_t>(e)].to;
        if (!inside[static_cast<std::size_t>(to)]) bytes += problem.edges[static_cast<std::size_t>(e)].bytes.value + extra(configuration.send_to, to);
    }
    // Activations forward and gradients backward: twice the cut. Parameters are reduced through servers, 4 (d - 1) / d of them a batch (PipeDream's model).
    double reduced = 4.0 * (data - 1) * configuration.parameters.value / data / problem.micro_batches;
    double time = (2 * bytes / data + reduced) / problem.bandwidth.value + configuration.time_per_sample.value / data;
    return {time, configuration.memory_per_sample.value, configuration.memory_fixed.value, index};
}

struct Neighbours {
    std::vector<std::vector<int>> incoming, outgoing;  // edge indices
    explicit Neighbours(const ReplicatedProblem& problem) : incoming(problem.nodes.size()), outgoing(problem.nodes.size()) {
        for (std::size_t e = 0; e < problem.edges.size(); ++e) {
            incoming[static_cast<std::size_t>(problem.edges[e].to)].push_back(static_cast<int>(e));
            outgoing[static_cast<std::size_t>(problem.edges[e].from)].push_back(static_cast<int>(e));
        }
    }
};

// Choice of one configuration per node: least time with sum of memory at most `limit`.
struct Knapsack {
    struct Choice {
        double time, memory;
        int index;
    };
    std::vector<std::vector<Choice>> nodes;  // each an efficient frontier: time rising, memory falling

    void add(std::vector<Choice> choices) {
        std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return std::pair(a.time, a.memory) < std::pair(b.time, b.memory); });
        std::vector<Choice> frontier;
        for (const Choice& c : choices)
            if (frontier.empty() || c.memory < frontier.back().memory) frontier.push_back(c);
        nodes.push_back(std::move(frontier));
    }

    // Relaxation (first) and its rounding (second) with the rounded choice.
    std::pair<double, double> bounds(double limit, std::vector<int>* chosen = nullptr) const {
        struct Step {
            double time, memory;
            std::size_t node, to;
        };
        std::vector<Step> steps;
        std::vector<std::size_t> at(nodes.size(), 0);
        double time = 0, memory = 0;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            time += nodes[n][0].time;
            memory += nodes[n][0].memory;
            for (std::size_t from = 0; from + 1 < nodes[n].size();) {  // lower convex hull
                std::size_t best = from + 1;
                for (std::size_t to = from + 2; to < nodes[n].size(); ++to)
                    if ((nodes[n][to].time - nodes[n][from].time) * (nodes[n][from].memory - nodes[n][best].memory) <=
                        (nodes[n][best].time - nodes[n][from].time) * (nodes[n][from].memory - nodes[n][to].memory))
                        best = to;
                steps.push_back({nodes[n][best].time - nodes[n][from].time, nodes[n][from].memory - nodes[n][best].memory, n, best});
                from = best;
            }
        }
        std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.time * b.memory < b.time * a.memory; });
        const double rounding = 1e-14 * limit;
        double excess = memory - limit, relaxed = time, rounded = infinity, base = time;
        std::size_t s = 0;
        std::vector<std::size_t> best_at;
        for (; s < steps.size() && excess > rounding; ++s) {
            // Stop here with one single step that is large enough, whichever is cheapest: roundings of every prefix.
            double cheapest = infinity;
            std::size_t which = steps.size();
            for (std::size_t r = s; r < steps.size(); ++r)
                if (steps[r].memory >= excess && steps[r].time < cheapest && at[steps[r].node] < steps[r].to) {
                    bool is_next = true;  // steps of one node are taken in order
                    for (std::size_t q = s; q < r; ++q) is_next = is_next && steps[q].node != steps[r].node;
                    if (is_next) cheapest = steps[r].time, which = r;
                }
            if (which < steps.size() && base + cheapest < rounded) {
                rounded = base + cheapest;
                best_at = at;
                best_at[steps[which].node] = steps[which].to;
            }
            relaxed += steps[s].time * std::min(1.0, excess / steps[s].memory);
            base += steps[s].time;
            excess -= steps[s].memory;
            at[steps[s].node] = steps[s].to;
        }
        if (excess > rounding) return {infinity, infinity};
        if (base < rounded) {
            rounded = base;
            best_at = at;
        }
        if (chosen) {
            chosen->clear();
            for (std::size_t n = 0; n < nodes.size(); ++n) chosen->push_back(nodes[n][best_at[n]].index);
        }
        return {relaxed, rounded};
    }

    // The exact least time, or nothing when the frontier of partial choices grows too long. `best` is a known achievable time.
    bool exact(double limit, double best, double& time, std::vector<int>* chosen) const {
        struct Point {
            double time, memory;
            std::int32_t parent;
            std::int32_t choice;
        };
        // What the nodes still to come need at least.
        std::vector<double> least_time(nodes.size() + 1, 0), least_memory(nodes.size() + 1, 0);
        for (std::size_t n = nodes.size(); n-- > 0;) {
            least_time[n] = least_time[n + 1] + nodes[n].front().time;
            least_memory[n] = least_memory[n + 1] + nodes[n].back().memory;
        }
        std::vector<std::vector<Point>> levels{{Point{0, 0, -1, -1}}};
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            std::vector<Point> next;
            for (std::size_t p = 0; p < levels.back().size(); ++p)
                for (std::size_t c = 0; c < nodes[n].size(); ++c) {
                    Point point{levels.back()[p].time + nodes[n][c].time, levels.back()[p].memory + nodes[n][c].memory, static_cast<std::int32_t>(p),
                                static_cast<std::int32_t>(c)};
                    if (point.memory + least_memory[n + 1] <= limit && point.time + least_time[n + 1] <= best * (1 + 1e-12)) next.push_back(point);
                }
            std::sort(next.begin(), next.end(), [](const Point& a, const Point& b) { return std::pair(a.time, a.memory) < std::pair(b.time, b.memory); });
            std::vector<Point> frontier;
            for (const Point& point : next)
                if (frontier.empty() || point.memory < frontier.back().memory * (1 - 1e-14)) frontier.push_back(point);
            if (frontier.size() > most_frontier_points) return false;
            if (frontier.empty()) {
                time = infinity;
                return true;
            }
            levels.push_back(std::move(frontier));
        }
        time = levels.back().front().time;
        if (chosen) {
            chosen->assign(nodes.size(), 0);
            std::int32_t at = 0;
            for (std::size_t n = nodes.size(); n-- > 0;) {
                const Point& point = levels[n + 1][static_cast<std::size_t>(at)];
                (*chosen)[n] = nodes[n][static_cast<std::size_t>(point.choice)].index;
                at = point.parent;
            }
        }
        return true;
    }
};

class ReplicatedSearch {
public:
    ReplicatedSearch(const ReplicatedProblem& problem, const ReplicatedOptions& options);

    bool covers_all_downsets() const { return covers_all_; }
    double lower_bound() const { return lower_bound_; }
    bool has_open_knapsacks() const { return has_open_knapsacks_; }
    bool is_out_of_time() const { return is_out_of_time_; }
    // Stages with every time at most `threshold`; empty when there are none. `is_optimistic`: knapsacks by their lower bounds (then only the verdict counts).
    std::optional<std::vector<ReplicatedStage>> decide(double threshold, bool is_optimistic);

private:
    struct Entry {  // one (stage, tensor, data)
        std::int32_t pair;
        std::int16_t tensor, data;
        double least_time;                 // fastest configurations, memory ignored
        std::int32_t most_fast, most_any;  // samples in flight with which they, or the smallest ones, fit
    };
    struct Bounds {
        double lower, upper;
        bool is_exact;
    };
    struct Pair {
        std::int32_t inner, outer;  // sets of last nodes
        std::size_t first_entry, last_entry;
    };

    std::vector<int> nodes_of(const Pair& pair) const;
    Knapsack knapsack(const Entry& entry, int in_flight) const;
    const Bounds& bounds(std::size_t entry, int in_flight);
    int most_in_flight(std::size_t entry, double threshold, bool is_optimistic);

    const ReplicatedProblem& problem_;
    Neighbours neighbours_;
    Clock::time_point deadline_;
    std::vector<std::vector<char>> sets_;  // closed under successors, by size
    std::vector<Pair> pairs_;              // by outer set
    std::vector<Entry> entries_;
    std::unordered_map<std::uint64_t, Bounds> bounds_;
    bool covers_all_ = true, has_open_knapsacks_ = false, is_out_of_time_ = false;
    double lower_bound_ = 0;
    int most_replicas_ = 1;
};

ReplicatedSearch::ReplicatedSearch(const ReplicatedProblem& problem, const ReplicatedOptions& options) : problem_(problem), neighbours_(problem) {
    deadline_ = options.time_limit.value < 1e8
                    ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit.value))
                    : Clock::time_point::max();
    const std::size_t n = problem.nodes.size();
    most_replicas_ = std::min(problem.micro_batches, problem.devices);
    // Sets of last nodes, breadth first by size.
    std::set<std::vector<char>> level{std::vector<char>(n, 0)};
    for (std::size_t size = 0; size <= n && covers_all_; ++size) {
        std::set<std::vector<char>> next;
        for (const std::vector<char>& set : level) {
            sets_.push_back(set);
            for (std::size_t v = 0; v < n; ++v) {
                if (set[v]) continue;
                bool is_last = true;
                for (int e : neighbours_.outgoing[v]) is_last = is_last && set[static_cast<std::size_t>(problem.edges[static_cast<std::size_t>(e)].to)];
                if (!is_last) continue;
                std::vector<char> with = set;
                with[v] = 1;
                next.insert(std::move(with));
            }
        }
        level = std::move(next);
        if (sets_.size() + level.size() > options.most_downsets) covers_all_ = false;
    }
    auto is_subset = [&](const std::vector<char>& a, const std::vector<char>& b) {
        for (std::size_t v = 0; v < n; ++v)
            if (a[v] && !b[v]) return false;
        return true;
    };
    auto make_pairs = [&] {
        pairs_.clear();
        for (std::size_t outer = 1; outer < sets_.size(); ++outer)
            for (std::size_t inner = 0; inner < outer; ++inner)
                if (is_subset(sets_[inner], sets_[outer])) {
                    pairs_.push_back({static_cast<std::int32_t>(inner), static_cast<std::int32_t>(outer), 0, 0});
                    if (pairs_.size() > most_pairs) return false;
                }
        return true;
    };
    if (!covers_all_ || !make_pairs()) {
        covers_all_ = false;
        sets_.assign(1, std::vector<char>(n, 0));
        for (std::size_t v = n; v-- > 0;) {
            sets_.push_back(sets_.back());
            sets_.back()[v] = 1;
        }
        make_pairs();
    }
    // No placement beats perfect balance of every node's cheapest way, nor the fastest single node.
    double work = 0;
    for (const ConfigurableNode& node : problem.nodes) {
        double least_work = infinity, least_time = infinity;
        for (const auto& [tensor, list] : node.configurations)
            for (const NodeConfiguration& c : list) {
                least_work = std::min(least_work, tensor * c.time_per_sample.value);
                for (int d = 1; d <= most_replicas_ && d * tensor <= problem.devices; ++d)
                    if (problem.micro_batches % d == 0) least_time = std::min(least_time, c.time_per_sample.value / d);
            }
        work += least_work;
        lower_bound_ = std::max(lower_bound_, least_time);
    }
    lower_bound_ = std::max(lower_bound_, work / problem.devices);

    for (std::size_t p = 0; p < pairs_.size(); ++p) {
        Pair& pair = pairs_[p];
        pair.first_entry = entries_.size();
        std::vector<int> nodes = nodes_of(pair);
        std::vector<char> inside(n, 0);
        for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
        std::set<int> degrees;
        for (const auto& [tensor, list] : problem.nodes[static_cast<std::size_t>(nodes[0])].configurations) degrees.insert(tensor);
        for (int tensor : degrees) {
            bool is_supported = tensor <= problem.devices;
            for (int v : nodes) {
                auto found = problem.nodes[static_cast<std::size_t>(v)].configurations.find(tensor);
                is_supported = is_supported && found != problem.nodes[static_cast<std::size_t>(v)].configurations.end() && !found->second.empty();
            }
            if (!is_supported) continue;
            for (int data = 1; data <= most_replicas_ && data * tensor <= problem.devices; ++data) {
                if (problem.micro_batches % data != 0) continue;
                Entry entry{static_cast<std::int32_t>(p), static_cast<std::int16_t>(tensor), static_cast<std::int16_t>(data), 0, 0, 0};
                double per_sample = 0, fixed = 0;
                for (int v : nodes) {
                    Cost best{infinity, 0, 0, 0};
                    const auto& list = problem.nodes[static_cast<std::size_t>(v)].configurations.at(tensor);
                    for (std::size_t c = 0; c < list.size(); ++c) {
                        Cost cost = cost_of(problem, neighbours_.incoming, neighbours_.outgoing, v, list[c], static_cast<int>(c), data, inside);
                        if (std::pair(cost.time, cost.per_sample) < std::pair(best.time, best.per_sample)) best = cost;
                    }
                    entry.least_time += best.time;
                    per_sample += best.per_sample;
                    fixed += best.fixed;
                }
                const int most = (most_replicas_ + data - 1) / data;
                auto fits_smallest = [&](int y) {
                    double memory = 0;
                    for (int v : nodes) {
                        double least = infinity;
                        for (const NodeConfiguration& c : problem.nodes[static_cast<std::size_t>(v)].configurations.at(tensor))
                            least = std::min(least, c.memory_per_sample.value * y + c.memory_fixed.value);
                        memory += least;
                    }
                    return memory <= with_margin(problem.memory_limit);
                };
                if (fixed + per_sample <= with_margin(problem.memory_limit))
                    entry.most_fast = per_sample > 0
                                          ? static_cast<std::int32_t>(std::min<double>(most, std::floor((with_margin(problem.memory_limit) - fixed) / per_sample)))
                                          : most;
                int low = entry.most_fast, high = most;
                while (low < high) {  // memory rises with samples in flight
                    int middle = (low + high + 1) / 2;
                    if (fits_smallest(middle)) low = middle;
                    else high = middle - 1;
                }
                entry.most_any = low;
                if (entry.most_any >= 1) entries_.push_back(entry);
            }
        }
        pair.last_entry = entries_.size();
    }
}

std::vector<int> ReplicatedSearch::nodes_of(const Pair& pair) const {
    std::vector<int> nodes;
    for (std::size_t v = 0; v < problem_.nodes.size(); ++v)
        if (sets_[static_cast<std::size_t>(pair.outer)][v] && !sets_[static_cast<std::size_t>(pair.inner)][v]) nodes.push_back(static_cast<int>(v));
    return nodes;
}

Knapsack ReplicatedSearch::knapsack(const Entry& entry, int in_flight) const {
    std::vector<int> nodes = nodes_of(pairs_[static_cast<std::size_t>(entry.pair)]);
    std::vector<char> inside(problem_.nodes.size(), 0);
    for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
    Knapsack knapsack;
    for (int v : nodes) {
        std::vector<Knapsack::Choice> choices;
        const auto& list = problem_.nodes[static_cast<std::size_t>(v)].configurations.at(entry.tensor);
        for (std::size_t c = 0; c < list.size(); ++c) {
            Cost cost = cost_of(problem_, neighbours_.incoming, neighbours_.outgoing, v, list[c], static_cast<int>(c), entry.data, inside);
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
        auto [lower, upper] = knapsack(entries_[entry], in_flight).bounds(with_margin(problem_.memory_limit));
        place->second = {lower, upper, lower >= upper * (1 - 1e-13)};
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
            double time = 0;
            if (knapsack(entry, middle).exact(with_margin(problem_.memory_limit), known.upper, time, nullptr)) {
                known = {time, time, true};
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

std::optional<std::vector<ReplicatedStage>> ReplicatedSearch::decide(double threshold, bool is_optimistic) {
    const std::size_t width = static_cast<std::size_t>(most_replicas_) + 1;
    constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> fewest(sets_.size() * width, none), parent(sets_.size() * width, -1);
    std::vector<std::int32_t> last(sets_.size(), -1);  // largest s reached
    fewest[0] = 0;
    last[0] = 0;
    for (const Pair& pair : pairs_) {
        if (last[static_cast<std::size_t>(pair.inner)] < 0) continue;
        if (Clock::now() > deadline_) {
            is_out_of_time_ = true;
            return std::nullopt;
        }
        const std::int32_t* from = fewest.data() + static_cast<std::size_t>(pair.inner) * width;
        std::int32_t* to = fewest.data() + static_cast<std::size_t>(pair.outer) * width;
        for (std::size_t e = pair.first_entry; e < pair.last_entry; ++e) {
            const Entry& entry = entries_[e];
            if (entry.least_time > threshold) continue;
            int most = most_in_flight(e, threshold, is_optimistic);
            int last_s = std::min({most * entry.data, most_replicas_}) - entry.data;
            last_s = std::min(last_s, last[static_cast<std::size_t>(pair.inner)]);
            const std::int32_t added = entry.tensor * entry.data;
            for (int s = 0; s <= last_s; ++s) {
                if (from[s] == none || from[s] + added > problem_.devices) continue;
                if (from[s] + added < to[s + entry.data]) {
                    to[s + entry.data] = from[s] + added;
                    parent[static_cast<std::size_t>(pair.outer) * width + static_cast<std::size_t>(s + entry.data)] = static_cast<std::int32_t>(e);
                    last[static_cast<std::size_t>(pair.outer)] = std::max(last[static_cast<std::size_t>(pair.outer)], s + entry.data);
                }
            }
        }
    }
    std::size_t set = sets_.size() - 1, s = width;
    for (std::size_t candidate = 0; candidate < width && s == width; ++candidate)
        if (fewest[set * width + candidate] != none) s = candidate;
    if (s == width) return std::nullopt;
    std::vector<ReplicatedStage> stages;
    if (is_optimistic) return stages;
    while (set != 0) {
        std::size_t e = static_cast<std::size_t>(parent[set * width + s]);
        const Entry& entry = entries_[e];
        const Pair& pair = pairs_[static_cast<std::size_t>(entry.pair)];
        int in_flight = (static_cast<int>(s) + entry.data - 1) / entry.data;
        Knapsack choices = knapsack(entry, in_flight);
        std::vector<int> chosen;
        auto [lower, upper] = choices.bounds(with_margin(problem_.memory_limit), &chosen);
        double time = 0;
        std::vector<int> better;
        if (lower < upper && choices.exact(with_margin(problem_.memory_limit), upper, time, &better) && time < upper) chosen = std::move(better);
        stages.push_back(evaluate_stage(problem_, nodes_of(pair), entry.data, entry.tensor, std::move(chosen), static_cast<int>(s) - entry.data));
        s -= static_cast<std::size_t>(entry.data);
        set = static_cast<std::size_t>(pair.inner);
    }
    return stages;
}

}  // namespace

ReplicatedStage evaluate_stage(const ReplicatedProblem& problem, std::vector<int> nodes, int data, int tensor, std::vector<int> configurations,
                               int later_replicas) {
    Neighbours neighbours(problem);
    std::vector<char> inside(problem.nodes.size(), 0);
    for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
    ReplicatedStage stage{.nodes = std::move(nodes), .data = data, .tensor = tensor, .configurations = std::move(configurations), .time = {}, .memory = {}};
    core::require(stage.nodes.size() == stage.configurations.size(), "a stage has one configuration a node");
    int in_flight = (later_replicas + data + data - 1) / data;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const auto& list = problem.nodes[static_cast<std::size_t>(stage.nodes[i])].configurations.at(tensor);
        const NodeConfiguration& configuration = list.at(static_cast<std::size_t>(stage.configurations[i]));
        Cost cost = cost_of(problem, neighbours.incoming, neighbours.outgoing, stage.nodes[i], configuration, 0, data, inside);
        stage.time += core::Seconds(cost.time);
        stage.memory += core::Bytes(cost.per_sample * in_flight + cost.fixed);
    }
    return stage;
}

ReplicatedResult place_replicated(const ReplicatedProblem& problem, const ReplicatedOptions& options) {
    ReplicatedResult result;
    if (problem.nodes.empty()) return result;
    ReplicatedSearch search(problem, options);
    auto offer = [&](std::vector<ReplicatedStage> stages) {
        core::Seconds largest;
        for (const ReplicatedStage& stage : stages) {
            core::require(stage.memory <= problem.memory_limit * (1 + 1e-12), "every stage of an answer fits its devices");
            largest = std::max(largest, stage.time);
        }
        if (!result.is_feasible || largest < result.objective) {
            result.is_feasible = true;
            result.objective = largest;
            result.stages = std::move(stages);
        }
    };
    if (auto stages = search.decide(infinity, false)) offer(std::move(*stages));
    result.lower_bound = core::Seconds(search.lower_bound());
    if (!result.is_feasible) {
        result.is_proven_infeasible = search.covers_all_downsets() && !search.is_out_of_time();
        std::int64_t most_demanding = 0;
        double largest = 0;
        for (const ConfigurableNode& node : problem.nodes) {
            double least = infinity;
            for (const auto& [tensor, list] : node.configurations)
                for (const NodeConfiguration& c : list)
                    if (tensor <= problem.devices) least = std::min(least, c.memory_per_sample.value + c.memory_fixed.value);
            if (least > largest) {
                largest = least;
                most_demanding = node.id;
            }
        }
        result.reason =
            fmt::format("no split into stages fits {} devices of {:.0f} bytes; node {} alone needs {:.0f} bytes on each of its devices at the least",
                        problem.devices, problem.memory_limit.value, most_demanding, largest);
        return result;
    }
    // Bisection. `low` is refuted (or the relaxation's bound), `result.objective` achieved.
    auto bisect = [&](double low, double high, bool is_optimistic) {
        while (high - low > 1e-9 * high && !search.is_out_of_time()) {
            double middle = std::min(0.5 * (low + high), high * (1 - 0.5e-9));
            auto stages = search.decide(middle, is_optimistic);
            if (search.is_out_of_time()) break;
            if (!stages) {
                low = middle;
            } else if (is_optimistic) {
                high = middle;
            } else {
                offer(std::move(*stages));
                high = std::min(middle, result.objective.value);
            }
        }
        return low;
    };
    double refuted = bisect(result.lower_bound.value, result.objective.value, false);
    if (!search.covers_all_downsets()) {
        result.lower_bound = std::min(result.lower_bound, result.objective);
        return result;
    }
    if (search.has_open_knapsacks()) refuted = bisect(result.lower_bound.value, result.objective.value, true);
    result.lower_bound = core::Seconds(std::min(refuted, result.objective.value));
    result.is_proven_optimal = !search.is_out_of_time() && result.objective.value - refuted <= 2e-9 * result.objective.value;
    if (result.is_proven_optimal) result.lower_bound = result.objective;
    return result;
}

}  // namespace planner
