#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "model/model_graph.h"
#include "partition/baseline/baseline_placement.h"

namespace partition {

namespace {

constexpr std::size_t coarsest = 40;  // vertices: a graph no larger is cut along its order at once
constexpr double imbalance = 1.1;     // a part weighs at most this many times its share

// An undirected view for cuts and a directed one for order, in one weighted graph whose vertices are numbered
// topologically.
struct Weighted {
    std::vector<double> weight;
    std::map<std::pair<std::size_t, std::size_t>, double>
        edges;  // (from, to): transfer time; zero where only order counts
    std::vector<std::vector<std::pair<std::size_t, double>>> next, before;

    void link() {
        next.assign(weight.size(), {});
        before.assign(weight.size(), {});
        for (const auto& [ends, time] : edges) {
            next[ends.first].emplace_back(ends.second, time);
            before[ends.second].emplace_back(ends.first, time);
        }
    }
};

// Heavy-edge matching of neighbours. A vertex is matched with its only successor, or with a successor whose
// only predecessor it is: no path leaves such a pair and comes back, so contracting it leaves no cycle.
std::vector<std::optional<std::size_t>> matched_partners(const Weighted& graph) {
    std::vector<std::optional<std::size_t>> partner(graph.weight.size());
    for (std::size_t v = 0; v < graph.weight.size(); ++v) {
        if (partner[v]) continue;
        std::optional<std::size_t> best;
        double heaviest = 0;
        for (auto [u, time] : graph.next[v]) {
            if (partner[u] || (graph.next[v].size() > 1 && graph.before[u].size() > 1) ||
                (best && time <= heaviest))
                continue;
            heaviest = time;
            best = u;
        }
        if (!best) continue;
        partner[v] = *best;
        partner[*best] = v;
    }
    return partner;
}

// Of each vertex its number in the graph of contracted pairs, in a topological order of that graph.
std::vector<std::size_t> coarse_numbers(const Weighted& graph) {
    const std::size_t n = graph.weight.size();
    const std::vector<std::optional<std::size_t>> partner = matched_partners(graph);
    std::vector<std::vector<std::size_t>> members(n);
    std::vector<std::size_t> head(n);
    for (std::size_t v = 0; v < n; ++v) {
        head[v] = std::min(partner[v].value_or(v), v);
        members[head[v]].push_back(v);
    }
    std::vector<int> waiting(n, 0);
    for (const auto& [ends, time] : graph.edges)
        if (head[ends.first] != head[ends.second]) ++waiting[head[ends.second]];
    std::vector<std::size_t> ready, coarse(n);
    for (std::size_t v = n; v-- > 0;)
        if (head[v] == v && waiting[v] == 0) ready.push_back(v);
    for (std::size_t next_number = 0; !ready.empty(); ++next_number) {
        const std::size_t h = ready.back();
        ready.pop_back();
        for (std::size_t m : members[h]) {
            coarse[m] = next_number;
            for (auto [u, time] : graph.next[m]) {
                const std::size_t other = head[u];
                if (other != h && --waiting[other] == 0) ready.push_back(other);
            }
        }
    }
    return coarse;
}

Weighted contracted(const Weighted& graph, const std::vector<std::size_t>& coarse) {
    Weighted result;
    result.weight.assign(*std::max_element(coarse.begin(), coarse.end()) + 1, 0);
    for (std::size_t v = 0; v < coarse.size(); ++v) result.weight[coarse[v]] += graph.weight[v];
    for (const auto& [ends, time] : graph.edges) {
        const std::size_t a = coarse[ends.first], b = coarse[ends.second];
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
        if (b.side[ends.first] != b.side[ends.second]) b.cut += time;
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
            std::optional<std::size_t> chosen;
            std::pair<double, double> least;
            for (std::size_t v = 0; v < n; ++v) {
                if (is_locked[v]) continue;
                // To the other side without an edge running back: 0 -> 1 with all successors there, 1 -> 0
                // with all predecessors there.
                const auto& must = at.side[v] ? graph.before[v] : graph.next[v];
                if (!std::all_of(must.begin(), must.end(),
                                 [&](const auto& e) { return at.side[e.first] != at.side[v]; }))
                    continue;
                double gain = 0;
                for (const auto* list : {&graph.next[v], &graph.before[v]})
                    for (auto [u, time] : *list) gain += at.side[u] != at.side[v] ? time : -time;
                Bisection moved{.side = {},
                                .cut = at.cut - gain,
                                .weight = at.weight + (at.side[v] ? graph.weight[v] : -graph.weight[v])};
                const auto value = badness(moved, wished, total);
                if (!chosen || value < least) chosen = v, least = value;
            }
            if (!chosen) break;
            const std::size_t v = *chosen;
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
        const std::vector<std::size_t> coarse = coarse_numbers(graph);
        const Weighted smaller = contracted(graph, coarse);
        if (smaller.weight.size() < graph.weight.size()) {
            const Bisection below = bisect(smaller, wished, total);
            Bisection here{.side = std::vector<char>(graph.weight.size())};
            for (std::size_t v = 0; v < coarse.size(); ++v) here.side[v] = below.side[coarse[v]];
            measure(graph, here);
            refine(graph, here, wished, total);
            return here;
        }
    }
    Bisection result = initial(graph, wished, total);
    refine(graph, result, wished, total);
    return result;
}

void divide(const Weighted& whole, const std::vector<std::size_t>& vertices, std::size_t parts,
            std::size_t first, std::vector<std::size_t>& part) {
    if (parts == 1 || vertices.size() < 2) {
        for (std::size_t v : vertices) part[v] = first;
        return;
    }
    std::map<std::size_t, std::size_t> position;
    Weighted graph;
    for (std::size_t v : vertices) {
        position[v] = graph.weight.size();
        graph.weight.push_back(whole.weight[v]);
    }
    for (std::size_t v : vertices)
        for (auto [u, time] : whole.next[v])
            if (auto found = position.find(u); found != position.end())
                graph.edges[{position[v], found->second}] += time;
    graph.link();
    const double total = std::accumulate(graph.weight.begin(), graph.weight.end(), 0.0);
    const std::size_t left = (parts + 1) / 2;
    const Bisection halves =
        bisect(graph, total * static_cast<double>(left) / static_cast<double>(parts), total);
    std::vector<std::size_t> sides[2];
    for (std::size_t i = 0; i < vertices.size(); ++i) sides[halves.side[i] ? 1 : 0].push_back(vertices[i]);
    divide(whole, sides[0], left, first, part);
    divide(whole, sides[1], parts - left, first + left, part);
}

}  // namespace

std::vector<PlacedStage> place_multilevel(const PlacementProblem& problem) {
    const std::vector<std::size_t> class_of_device = classes_of_accelerators(problem);
    if (class_of_device.empty() || problem.items.empty()) return {};
    Weighted graph;
    for (const PlacementItem& item : problem.items) graph.weight.push_back(item.accelerator_time.value);
    for (auto [a, b] : problem.precedence) graph.edges[{a, b}] += 0;
    for (const Transfer& transfer : problem.transfers)
        for (std::size_t d : transfer.destinations) {
            // A gradient runs against the order: for the cut its direction does not matter.
            const std::pair<std::size_t, std::size_t> ends = std::minmax(transfer.source, d);
            if (auto found = graph.edges.find(ends); found != graph.edges.end())
                found->second += transfer.time.value / static_cast<double>(transfer.destinations.size());
        }
    graph.link();
    std::vector<std::size_t> all(problem.items.size()), part(problem.items.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    divide(graph, all, class_of_device.size(), 0, part);
    return stages_of(problem, part, class_of_device);
}

}  // namespace partition
