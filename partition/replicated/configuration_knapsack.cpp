#include "partition/replicated/configuration_knapsack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/index/integers.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_frontier_points = 4000;  // beyond, only the two bounds are known

}  // namespace

void ConfigurationKnapsack::add(std::vector<Choice> choices) {
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
        return std::pair(a.time, a.memory) < std::pair(b.time, b.memory);
    });
    std::vector<Choice> frontier;
    for (const Choice& c : choices)
        if (frontier.empty() || c.memory < frontier.back().memory) frontier.push_back(c);
    nodes_.push_back(std::move(frontier));
}

// Steps along the lower convex hull of every node's choices, by seconds lost a byte won: taken in this order
// until the memory fits, the last one in part.
ConfigurationKnapsack::Relaxation ConfigurationKnapsack::relaxation(core::Bytes limit) const {
    Relaxation result;
    result.at.assign(nodes_.size(), 0);
    std::vector<Step>& steps = result.steps;
    double memory = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
        const std::vector<Choice>& node = nodes_[n];
        const auto lost = [&](std::size_t from, std::size_t to) {
            return (node[to].time - node[from].time).value;
        };
        const auto won = [&](std::size_t from, std::size_t to) {
            return (node[from].memory - node[to].memory).value;
        };
        result.base += node[0].time.value;
        memory += node[0].memory.value;
        double price = 0;  // rises along a hull, so a node's steps stay in order when they are sorted
        for (std::size_t from = 0; from + 1 < node.size();) {
            std::size_t best = from + 1;
            for (std::size_t to = from + 2; to < node.size(); ++to)
                if (lost(from, to) * won(from, best) <= lost(from, best) * won(from, to)) best = to;
            const double time = lost(from, best), saved = won(from, best);
            price = std::max(price, time / saved);
            steps.push_back({price, time, saved, n, from, best});
            from = best;
        }
    }
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.price < b.price; });
    result.excess = memory - limit.value;
    result.relaxed = result.base;
    const double rounding = 1e-14 * limit.value;
    for (; result.next < steps.size() && result.excess > rounding; ++result.next) {
        const Step& step = steps[result.next];
        result.price = step.price;
        if (step.memory >= result.excess) {
            result.relaxed = result.base + step.time * (result.excess / step.memory);
            return result;
        }
        result.base += step.time;
        result.relaxed = result.base;
        result.excess -= step.memory;
        result.at[step.node] = step.to;
    }
    if (result.excess > rounding) result.relaxed = infinity;
    return result;
}

std::pair<core::Seconds, core::Seconds> ConfigurationKnapsack::bounds(
    core::Bytes limit, std::vector<std::size_t>* chosen) const {
    Relaxation relaxation = this->relaxation(limit);
    if (std::isinf(relaxation.relaxed)) return {core::Seconds(infinity), core::Seconds(infinity)};
    double time = relaxation.base, spare = -relaxation.excess;
    std::vector<std::size_t>& at = relaxation.at;
    // The step that was taken in part is rounded to the cheapest that suffices.
    if (spare < -1e-14 * limit.value) {
        const Step* cheapest = nullptr;
        for (std::size_t s = relaxation.next; s < relaxation.steps.size(); ++s) {
            const Step& step = relaxation.steps[s];
            if (at[step.node] == step.from && step.memory >= relaxation.excess &&
                (!cheapest || step.time < cheapest->time))
                cheapest = &step;
        }
        time += cheapest->time;  // the partial step itself suffices
        spare += cheapest->memory;
        at[cheapest->node] = cheapest->to;
    }
    // What was bought before and is no longer needed is returned, the dearest first.
    for (std::size_t s = relaxation.next; s-- > 0;) {
        const Step& step = relaxation.steps[s];
        if (at[step.node] != step.to || step.memory > spare) continue;
        at[step.node] = step.from;
        time -= step.time;
        spare -= step.memory;
    }
    if (chosen) {
        chosen->clear();
        for (std::size_t n = 0; n < nodes_.size(); ++n) chosen->push_back(nodes_[n][at[n]].index);
    }
    return {core::Seconds(std::min(relaxation.relaxed, time)), core::Seconds(time)};
}

std::optional<core::Seconds> ConfigurationKnapsack::exact(core::Bytes limit, core::Seconds best,
                                                          std::vector<std::size_t>* chosen) const {
    struct Point {
        double time, memory;  // so far: seconds, bytes
        std::int32_t parent;
        std::int32_t choice;
    };
    // What the nodes still to come need at least: memory; and, at the relaxation's price of a byte, time and
    // memory together. No completion of a point takes less time than point.time + least_priced + price *
    // (point.memory - limit), whatever the price (Lagrange).
    const double price = relaxation(limit).price;
    std::vector<double> least_memory(nodes_.size() + 1, 0), least_priced(nodes_.size() + 1, 0);
    for (std::size_t n = nodes_.size(); n-- > 0;) {
        least_memory[n] = least_memory[n + 1] + nodes_[n].back().memory.value;
        double priced = infinity;
        for (const Choice& c : nodes_[n]) priced = std::min(priced, c.time.value + price * c.memory.value);
        least_priced[n] = least_priced[n + 1] + priced;
    }
    const double most = best.value * (1 + 1e-12) + (price > 0 ? price * limit.value * 1e-12 : 0);
    const auto least_time = [&](const Point& point, std::size_t placed) {
        return point.time + least_priced[placed] + (price > 0 ? price * (point.memory - limit.value) : 0);
    };
    std::vector<std::vector<Point>> levels{{Point{0, 0, -1, -1}}};
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
        std::vector<Point> next;
        for (const std::int32_t p : core::indices(levels.back()))
            for (const std::int32_t c : core::indices(nodes_[n])) {
                const Point point{levels.back()[p].time + nodes_[n][c].time.value,
                                  levels.back()[p].memory + nodes_[n][c].memory.value, p, c};
                if (point.memory + least_memory[n + 1] <= limit.value && least_time(point, n + 1) <= most)
                    next.push_back(point);
            }
        std::sort(next.begin(), next.end(), [](const Point& a, const Point& b) {
            return std::pair(a.time, a.memory) < std::pair(b.time, b.memory);
        });
        std::vector<Point> frontier;
        for (const Point& point : next)
            if (frontier.empty() || point.memory < frontier.back().memory * (1 - 1e-14))
                frontier.push_back(point);
        if (frontier.size() > most_frontier_points) return std::nullopt;
        if (frontier.empty()) return core::Seconds(infinity);
        levels.push_back(std::move(frontier));
    }
    if (chosen) {
        chosen->assign(nodes_.size(), 0);
        std::int32_t at = 0;
        for (std::size_t n = nodes_.size(); n-- > 0;) {
            const Point& point = levels[n + 1][at];
            (*chosen)[n] = nodes_[n][point.choice].index;
            at = point.parent;
        }
    }
    return core::Seconds(levels.back().front().time);
}

}  // namespace partition
