#include "planner/linear_placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Kahn's algorithm with a stack or a queue of ready items; `from_sinks` walks the reversed graph and reverses the answer.
std::vector<int> topological_order(const PlacementProblem& problem, bool is_depth_first, bool from_sinks, bool largest_first) {
    std::size_t n = problem.items.size();
    std::vector<std::vector<int>> next(n);
    std::vector<int> waiting(n, 0);
    for (auto [before, after] : problem.precedence) {
        int from = from_sinks ? after : before, to = from_sinks ? before : after;
        next[static_cast<std::size_t>(from)].push_back(to);
        ++waiting[static_cast<std::size_t>(to)];
    }
    std::deque<int> ready;
    for (std::size_t i = 0; i < n; ++i)
        if (waiting[i] == 0) ready.push_back(static_cast<int>(i));
    std::vector<int> order;
    while (!ready.empty()) {
        int item = is_depth_first ? ready.back() : ready.front();
        if (is_depth_first) ready.pop_back();
        else ready.pop_front();
        order.push_back(item);
        std::vector<int>& list = next[static_cast<std::size_t>(item)];
        std::sort(list.begin(), list.end());
        if (largest_first) std::reverse(list.begin(), list.end());
        for (int s : list)
            if (--waiting[static_cast<std::size_t>(s)] == 0) ready.push_back(s);
    }
    if (from_sinks) std::reverse(order.begin(), order.end());
    return order;
}

struct Choice {
    double value = infinity;
    int from = -1;
    bool by_cpu = false;
};

// Smallest largest load with the items in this order: best[c][a][i] for the first i items.
double place_on_order(const PlacementProblem& problem, const std::vector<int>& order, std::vector<PlacedStage>& stages) {
    const std::size_t n = order.size();
    const int accelerators = problem.accelerators, cpus = problem.cpus;
    const std::size_t layers = static_cast<std::size_t>((accelerators + 1) * (cpus + 1));
    auto layer = [&](int a, int c) { return static_cast<std::size_t>(c * (accelerators + 1) + a); };
    std::vector<std::vector<Choice>> best(layers, std::vector<Choice>(n + 1));
    best[0][0].value = 0;
    std::vector<std::vector<std::pair<std::size_t, bool>>> incidences(n);
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        incidences[static_cast<std::size_t>(problem.transfers[e].source)].emplace_back(e, true);
        for (int d : problem.transfers[e].destinations) incidences[static_cast<std::size_t>(d)].emplace_back(e, false);
    }
    std::vector<std::size_t> held(problem.transfers.size());
    std::vector<char> has_source(problem.transfers.size());
    for (std::size_t begin = 0; begin < n; ++begin) {
        double least = infinity;  // smallest value of any layer here: nothing better can come out
        for (std::size_t l = 0; l < layers; ++l) least = std::min(least, best[l][begin].value);
        if (least == infinity) continue;
        std::fill(held.begin(), held.end(), 0);
        std::fill(has_source.begin(), has_source.end(), 0);
        double work = 0, paid = 0, cpu = 0, memory = 0;
        bool is_allowed = true;
        for (std::size_t end = begin; end < n; ++end) {
            std::size_t item = static_cast<std::size_t>(order[end]);
            work += problem.items[item].accelerator_time.value;
            cpu += problem.items[item].cpu_time.value;
            memory += problem.items[item].memory.value;
            is_allowed = is_allowed && problem.items[item].runs_on_accelerator && memory <= problem.memory_limit.value;
            if (!is_allowed && cpus == 0) break;
            auto pays = [&](std::size_t e) { return has_source[e] ? held[e] < problem.transfers[e].destinations.size() : held[e] > 0; };
            for (auto [e, is_source] : incidences[item]) {
                if (pays(e)) paid -= problem.transfers[e].time.value;
                if (is_source) has_source[e] = 1;
                else ++held[e];
                if (pays(e)) paid += problem.transfers[e].time.value;
            }
            for (int c = 0; c <= cpus; ++c)
                for (int a = 0; a <= accelerators; ++a) {
                    double value = best[layer(a, c)][begin].value;
                    if (value == infinity) continue;
                    auto offer = [&](Choice& to, double load, bool by_cpu) {
                        double candidate = std::max(value, load);
                        if (candidate < to.value) to = {candidate, static_cast<int>(begin), by_cpu};
                    };
                    if (a < accelerators && is_allowed) offer(best[layer(a + 1, c)][end + 1], work + paid, false);
                    if (c < cpus) offer(best[layer(a, c + 1)][end + 1], cpu, true);
                }
        }
    }
    int a = 0, c = 0;
    double value = infinity;
    for (int cc = 0; cc <= cpus; ++cc)
        for (int aa = 0; aa <= accelerators; ++aa)
            if (best[layer(aa, cc)][n].value < value) {
                value = best[layer(aa, cc)][n].value;
                a = aa;
                c = cc;
            }
    stages.clear();
    if (value == infinity) return value;
    for (std::size_t end = n; end > 0;) {
        const Choice& choice = best[layer(a, c)][end];
        std::size_t begin = static_cast<std::size_t>(choice.from);
        stages.push_back(stage_of(
            problem, std::vector<int>(order.begin() + static_cast<std::ptrdiff_t>(begin), order.begin() + static_cast<std::ptrdiff_t>(end)), choice.by_cpu));
        (choice.by_cpu ? c : a) -= 1;
        end = begin;
    }
    std::reverse(stages.begin(), stages.end());
    return value;
}

}  // namespace

std::vector<PlacedStage> place_on_orders(const PlacementProblem& problem) {
    std::vector<std::vector<int>> orders;
    orders.emplace_back(problem.items.size());
    std::iota(orders.back().begin(), orders.back().end(), 0);
    for (bool is_depth_first : {true, false})
        for (bool from_sinks : {true, false})
            for (bool largest_first : {true, false}) {
                std::vector<int> order = topological_order(problem, is_depth_first, from_sinks, largest_first);
                if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
            }
    std::vector<PlacedStage> best, stages;
    double best_value = infinity;
    for (const std::vector<int>& order : orders) {
        double value = place_on_order(problem, order, stages);
        if (value < best_value) {
            best_value = value;
            best = stages;
        }
    }
    return best;
}

}  // namespace planner
