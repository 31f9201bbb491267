#include <algorithm>
#include <map>
#include <numeric>

#include "partition/baseline/baseline_placement.h"

namespace partition {

namespace {

constexpr std::size_t coarsest = 40;
constexpr double imbalance = 1.1;

// An undirected view for cuts and a directed one for order, in one weighted graph whose vertices are numbered
// topologically.
struct Weighted {
    std::vector<double> weight;
    std::map<std::pair<int, int>, double> edges;  // (from, to): transfer time; zero where only order counts
    std::vector<std::vector<std::pair<int, double>>> next, before;

    void link() {
        next.assign(weight.size(), {});
        before.assign(weight.size(), {});
        for (const auto& [ends, time] : edges) {
            next[static_cast<std::size_t>(ends.first)].emplace_back(ends.second, time);
            before[static_cast<std::size_t>(ends.second)].emplace_back(ends.first, time);
        }
    }
};

// Heavy-edge matching of neighbours whose levels (longest path from a source) differ by one: contracting such
// an edge leaves no cycle as long as a vertex is matched only with one whose level nobody else of the pair's
// neighbours shares; matching on edges that are the only way between their levels keeps it simple.
std::vector<int> match(const Weighted& graph) {
    const std::size_t n = graph.weight.size();
    std::vector<int> level(n, 0), partner(n, -1), coarse(n, -1);
    for (std::size_t v = 0; v < n; ++v)
        for (auto [b, time] : graph.before[v])
            level[v] = std::max(level[v], level[static_cast<std::size_t>(b)] + 1);
    for (std::size_t v = 0; v < n; ++v) {
        if (partner[v] >= 0) continue;
        int best = -1;
        double heaviest = -1;
        // v's only successor, or a successor whose only predecessor is v: no path can leave the pair and come
        // back.
        for (auto [u, time] : graph.next[v]) {
            const std::size_t to = static_cast<std::size_t>(u);
            if (partner[to] >= 0 || (graph.next[v].size() > 1 && graph.before[to].size() > 1) ||
                time <= heaviest)
                continue;
            heaviest = time;
            best = u;
        }
        if (best < 0) continue;
        partner[v] = best;
        partner[static_cast<std::size_t>(best)] = static_cast<int>(v);
    }
    // Numbers in a topological order of the contracted graph.
    int next_number = 0;
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<std::vector<std::size_t>> members(n);
    std::vector<int> head(n);
    for (std::size_t v = 0; v < n; ++v) {
        head[v] = partner[v] >= 0 ? std::min(partner[v], static_cast<int>(v)) : static_cast<int>(v);
        members[static_cast<std::size_t>(head[v])].push_back(v);
    }
    std::vector<int> waiting(n, 0);
    for (const auto& [ends, time] : graph.edges)
        if (head[static_cast<std::size_t>(ends.first)] != head[static_cast<std::size_t>(ends.second)])
            ++waiting[static_cast<std::size_t>(head[static_cast<std::size_t>(ends.second)])];
    std::vector<int> ready;
    for (std::size_t v = n; v-- > 0;)
        if (head[v] == static_cast<int>(v) && waiting[v] == 0) ready.push_back(static_cast<int>(v));
    while (!ready.empty()) {
        const int h = ready.back();
        ready.pop_back();
        for (std::size_t m : members[static_cast<std::size_t>(h)]) {
            coarse[m] = next_number;
            for (auto [u, time] : graph.next[m]) {
                const int other = head[static_cast<std::size_t>(u)];
                if (other != h && --waiting[static_cast<std::size_t>(other)] == 0) ready.push_back(other);
            }
        }
        ++next_number;
    }
    return coarse;
}

Weighted contracted(const Weighted& graph, const std::vector<int>& coarse) {
    Weighted result;
    result.weight.assign(static_cast<std::size_t>(*std::max_element(coarse.begin(), coarse.end())) + 1, 0);
    for (std::size_t v = 0; v < coarse.size(); ++v)
        result.weight[static_cast<std::size_t>(coarse[v])] += graph.weight[v];
    for (const auto& [ends, time] : graph.edges) {
        const int a = coarse[static_cast<std::size_t>(ends.first)],
                  b = coarse[static_cast<std::size_t>(ends.second)];
        if (a != b) result.edges[{a, b}] += time;
    }
    result.link();
    return result;
}

// Sides 0 and 1 such that no edge runs from 1 to 0.
struct Bisection {
    std::vector<char> side;
    double cut = 0, weight = 0;  // of side 0
};

void measure(const Weighted& graph, Bisection& b) {
    b.cut = b.weight = 0;
    for (std::size_t v = 0; v < graph.weight.size(); ++v)
        if (!b.side[v]) b.weight += graph.weight[v];
    for (const auto& [ends, time] : graph.edges)
        if (b.side[static_cast<std::size_t>(ends.first)] != b.side[static_cast<std::size_t>(ends.second)])
            b.cut += time;
}

// How far from the wished weight, beyond what is allowed; then the cut.
std::pair<double, double> badness(const Bisection& b, double wished, double total) {
    const double low = total - (total - wished) * imbalance, high = wished * imbalance;
    return {std::max({0.0, low - b.weight, b.weight - high}), b.cut};
}

Bisection initial(const Weighted& graph, double wished, double total) {
    Bisection best;
    Bisection at{.side = std::vector<char>(graph.weight.size(), 1)};
    for (std::size_t v = 0; v <= graph.weight.size(); ++v) {
        measure(graph, at);
        if (best.side.empty() || badness(at, wished, total) < badness(best, wished, total)) best = at;
        if (v < graph.weight.size()) at.side[v] = 0;
    }
    return best;
}

void refine(const Weighted& graph, Bisection& b, double wished, double total) {
    const std::size_t n = graph.weight.size();
    for (int pass = 0; pass < 6; ++pass) {
        Bisection at = b, best = b;
        std::vector<char> is_locked(n, 0);
        for (std::size_t moves = 0; moves < std::min<std::size_t>(n, 200); ++moves) {
            int chosen = -1;
            std::pair<double, double> least;
            for (std::size_t v = 0; v < n; ++v) {
                if (is_locked[v]) continue;
                // To the other side without an edge running back: 0 -> 1 with all successors there, 1 -> 0
                // with all predecessors there.
                const auto& must = at.side[v] ? graph.before[v] : graph.next[v];
                if (!std::all_of(must.begin(), must.end(), [&](const auto& e) {
                        return at.side[static_cast<std::size_t>(e.first)] != at.side[v];
                    }))
                    continue;
                double gain = 0;
                for (const auto* list : {&graph.next[v], &graph.before[v]})
                    for (auto [u, time] : *list)
                        gain += at.side[static_cast<std::size_t>(u)] != at.side[v] ? time : -time;
                Bisection moved{.side = {},
                                .cut = at.cut - gain,
                                .weight = at.weight + (at.side[v] ? graph.weight[v] : -graph.weight[v])};
                const auto value = badness(moved, wished, total);
                if (chosen < 0 || value < least) chosen = static_cast<int>(v), least = value;
            }
            if (chosen < 0) break;
            const std::size_t v = static_cast<std::size_t>(chosen);
            at.side[v] = !at.side[v];
            is_locked[v] = 1;
            measure(graph, at);
            if (badness(at, wished, total) < badness(best, wished, total)) best = at;
        }
        if (!(badness(best, wished, total) < badness(b, wished, total))) return;
        b = best;
    }
}

Bisection bisect(const Weighted& graph, double wished, double total) {
    if (graph.weight.size() > coarsest) {
        const std::vector<int> coarse = match(graph);
        const Weighted smaller = contracted(graph, coarse);
        if (smaller.weight.size() < graph.weight.size()) {
            const Bisection below = bisect(smaller, wished, total);
            Bisection here{.side = std::vector<char>(graph.weight.size())};
            for (std::size_t v = 0; v < coarse.size(); ++v)
                here.side[v] = below.side[static_cast<std::size_t>(coarse[v])];
            measure(graph, here);
            refine(graph, here, wished, total);
            return here;
        }
    }
    Bisection result = initial(graph, wished, total);
    refine(graph, result, wished, total);
    return result;
}

void divide(const Weighted& whole, const std::vector<int>& vertices, int parts, int first,
            std::vector<int>& part) {
    if (parts == 1 || vertices.size() < 2) {
        for (int v : vertices) part[static_cast<std::size_t>(v)] = first;
        return;
    }
    std::map<int, int> position;
    Weighted graph;
    for (int v : vertices) {
        position[v] = static_cast<int>(graph.weight.size());
        graph.weight.push_back(whole.weight[static_cast<std::size_t>(v)]);
    }
    for (int v : vertices)
        for (auto [u, time] : whole.next[static_cast<std::size_t>(v)])
            if (auto found = position.find(u); found != position.end())
                graph.edges[{position[v], found->second}] += time;
    graph.link();
    const double total = std::accumulate(graph.weight.begin(), graph.weight.end(), 0.0);
    const int left = (parts + 1) / 2;
    const Bisection halves = bisect(graph, total * left / parts, total);
    std::vector<int> sides[2];
    for (std::size_t i = 0; i < vertices.size(); ++i) sides[halves.side[i] ? 1 : 0].push_back(vertices[i]);
    divide(whole, sides[0], left, first, part);
    divide(whole, sides[1], parts - left, first + left, part);
}

}  // namespace

std::vector<PlacedStage> place_multilevel(const PlacementProblem& problem) {
    const std::vector<int> class_of_device = classes_of_accelerators(problem);
    if (class_of_device.empty() || problem.items.empty()) return {};
    Weighted graph;
    for (const PlacementItem& item : problem.items) graph.weight.push_back(item.accelerator_time.value);
    for (auto [a, b] : problem.precedence) graph.edges[{a, b}] += 0;
    for (const Transfer& transfer : problem.transfers)
        for (int d : transfer.destinations) {
            // A gradient runs against the order: for the cut its direction does not matter.
            const std::pair<int, int> ends = std::minmax(transfer.source, d);
            if (auto found = graph.edges.find(ends); found != graph.edges.end())
                found->second += transfer.time.value / static_cast<double>(transfer.destinations.size());
        }
    graph.link();
    std::vector<int> all(problem.items.size()), part(problem.items.size(), 0);
    std::iota(all.begin(), all.end(), 0);
    divide(graph, all, static_cast<int>(class_of_device.size()), 0, part);
    return stages_of(problem, part, class_of_device);
}

}  // namespace partition
