#include "planner/configuration_knapsack.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_frontier_points = 4000;  // beyond, only the two bounds are known

}  // namespace

void ConfigurationKnapsack::add(std::vector<Choice> choices) {
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return std::pair(a.time, a.memory) < std::pair(b.time, b.memory); });
    std::vector<Choice> frontier;
    for (const Choice& c : choices)
        if (frontier.empty() || c.memory < frontier.back().memory) frontier.push_back(c);
    nodes_.push_back(std::move(frontier));
}

std::pair<core::Seconds, core::Seconds> ConfigurationKnapsack::bounds(core::Bytes limit, std::vector<int>* chosen) const {
    struct Step {
        double time, memory;  // lost and won: seconds, bytes
        std::size_t node, to;
    };
    std::vector<Step> steps;
    std::vector<std::size_t> at(nodes_.size(), 0);
    double time = 0, memory = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
        const std::vector<Choice>& node = nodes_[n];
        const auto lost = [&](std::size_t from, std::size_t to) { return (node[to].time - node[from].time).value; };
        const auto won = [&](std::size_t from, std::size_t to) { return (node[from].memory - node[to].memory).value; };
        time += node[0].time.value;
        memory += node[0].memory.value;
        for (std::size_t from = 0; from + 1 < node.size();) {  // lower convex hull
            std::size_t best = from + 1;
            for (std::size_t to = from + 2; to < node.size(); ++to)
                if (lost(from, to) * won(from, best) <= lost(from, best) * won(from, to)) best = to;
            steps.push_back({lost(from, best), won(from, best), n, best});
            from = best;
        }
    }
    std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.time * b.memory < b.time * a.memory; });
    const double rounding = 1e-14 * limit.value;
    double excess = memory - limit.value, relaxed = time, rounded = infinity, base = time;
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
    if (excess > rounding) return {core::Seconds(infinity), core::Seconds(infinity)};
    if (base < rounded) {
        rounded = base;
        best_at = at;
    }
    if (chosen) {
        chosen->clear();
        for (std::size_t n = 0; n < nodes_.size(); ++n) chosen->push_back(nodes_[n][best_at[n]].index);
    }
    return {core::Seconds(relaxed), core::Seconds(rounded)};
}

std::optional<core::Seconds> ConfigurationKnapsack::exact(core::Bytes limit, core::Seconds best, std::vector<int>* chosen) const {
    struct Point {
        double time, memory;  // so far: seconds, bytes
        std::int32_t parent;
        std::int32_t choice;
    };
    // What the nodes still to come need at least.
    std::vector<double> least_time(nodes_.size() + 1, 0), least_memory(nodes_.size() + 1, 0);
    for (std::size_t n = nodes_.size(); n-- > 0;) {
        least_time[n] = least_time[n + 1] + nodes_[n].front().time.value;
        least_memory[n] = least_memory[n + 1] + nodes_[n].back().memory.value;
    }
    std::vector<std::vector<Point>> levels{{Point{0, 0, -1, -1}}};
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
        std::vector<Point> next;
        for (std::size_t p = 0; p < levels.back().size(); ++p)
            for (std::size_t c = 0; c < nodes_[n].size(); ++c) {
                const Point point{levels.back()[p].time + nodes_[n][c].time.value, levels.back()[p].memory + nodes_[n][c].memory.value, static_cast<std::int32_t>(p),
                                  static_cast<std::int32_t>(c)};
                if (point.memory + least_memory[n + 1] <= limit.value && point.time + least_time[n + 1] <= best.value * (1 + 1e-12)) next.push_back(point);
            }
        std::sort(next.begin(), next.end(), [](const Point& a, const Point& b) { return std::pair(a.time, a.memory) < std::pair(b.time, b.memory); });
        std::vector<Point> frontier;
        for (const Point& point : next)
            if (frontier.empty() || point.memory < frontier.back().memory * (1 - 1e-14)) frontier.push_back(point);
        if (frontier.size() > most_frontier_points) return std::nullopt;
        if (frontier.empty()) return core::Seconds(infinity);
        levels.push_back(std::move(frontier));
    }
    if (chosen) {
        chosen->assign(nodes_.size(), 0);
        std::int32_t at = 0;
        for (std::size_t n = nodes_.size(); n-- > 0;) {
            const Point& point = levels[n + 1][static_cast<std::size_t>(at)];
            (*chosen)[n] = nodes_[n][static_cast<std::size_t>(point.choice)].index;
            at = point.parent;
        }
    }
    return core::Seconds(levels.back().front().time);
}

}  // namespace planner
