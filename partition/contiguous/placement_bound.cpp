// Bounds that hold for every placement, contiguous or not.
//
// A device that holds item i pays for some set S around it: its work and every transfer that S tears apart
// (an end inside and an end outside, whichever). That is a cut of a hypergraph, so the lightest S is a
// minimum cut: source -> item i; item -> sink with its work; every transfer a pair of vertices joined by its
// time, with all its ends tied to both sides. No stage that holds i is lighter, and item i must lie
// somewhere.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "partition/placement.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Maximum flow by Dinic's algorithm (1970): level graphs and blocking flows.
class FlowNetwork {
public:
    explicit FlowNetwork(std::size_t vertices) : first_(vertices, -1) {}

    void connect(int from, int to, double capacity) {
        edges_.push_back({to, first_[static_cast<std::size_t>(from)], capacity, capacity});
        first_[static_cast<std::size_t>(from)] = static_cast<int>(edges_.size()) - 1;
        edges_.push_back({from, first_[static_cast<std::size_t>(to)], 0, 0});
        first_[static_cast<std::size_t>(to)] = static_cast<int>(edges_.size()) - 1;
    }
    // Stops as soon as the flow reaches `enough`.
    double largest_flow(int source, int sink, double enough) {
        for (Edge& edge : edges_) edge.left = edge.capacity;
        double flow = 0;
        while (flow < enough && find_levels(source, sink)) {
            at_ = first_;
            while (double pushed = push(source, sink, infinity)) flow += pushed;
        }
        return flow;
    }

private:
    struct Edge {
        int to, next;
        double capacity, left;
    };
    static constexpr double least =
        1e-15;  // of a residual capacity that still counts, in the unit of the capacities

    bool find_levels(int source, int sink) {
        level_.assign(first_.size(), -1);
        std::vector<int> queue{source};
        level_[static_cast<std::size_t>(source)] = 0;
        for (std::size_t q = 0; q < queue.size(); ++q)
            for (int e = first_[static_cast<std::size_t>(queue[q])]; e >= 0;
                 e = edges_[static_cast<std::size_t>(e)].next) {
                const Edge& edge = edges_[static_cast<std::size_t>(e)];
                if (edge.left <= least || level_[static_cast<std::size_t>(edge.to)] >= 0) continue;
                level_[static_cast<std::size_t>(edge.to)] = level_[static_cast<std::size_t>(queue[q])] + 1;
                queue.push_back(edge.to);
            }
        return level_[static_cast<std::size_t>(sink)] >= 0;
    }
    double push(int vertex, int sink, double amount) {
        if (vertex == sink) return amount;
        for (int& e = at_[static_cast<std::size_t>(vertex)]; e >= 0;
             e = edges_[static_cast<std::size_t>(e)].next) {
            Edge& edge = edges_[static_cast<std::size_t>(e)];
            if (edge.left <= least ||
                level_[static_cast<std::size_t>(edge.to)] != level_[static_cast<std::size_t>(vertex)] + 1)
                continue;
            const double pushed = push(edge.to, sink, std::min(amount, edge.left));
            if (pushed <= 0) continue;
            edge.left -= pushed;
            edges_[static_cast<std::size_t>(e ^ 1)].left += pushed;
            return pushed;
        }
        return 0;
    }

    std::vector<int> first_, level_, at_;
    std::vector<Edge> edges_;
};

// Of any stage that holds the heaviest items: the largest of their lightest sets.
double heaviest_item_bound(const PlacementProblem& problem, const std::vector<DeviceClass>& classes,
                           double known) {
    double slowness = infinity, transfer_slowness = infinity, cpu_slowness = infinity;
    for (const DeviceClass& c : classes) {
        if (c.count == 0) continue;
        if (c.is_cpu) {
            cpu_slowness = std::min(cpu_slowness, c.slowness);
            continue;
        }
        slowness = std::min(slowness, c.slowness);
        transfer_slowness = std::min(transfer_slowness, c.transfer_slowness);
    }
    if (std::isinf(slowness)) return known;
    const std::size_t n = problem.items.size();
    std::vector<double> alone(
        n);  // an item by itself on an accelerator, no better than which its lightest set is
    for (std::size_t i = 0; i < n; ++i) alone[i] = problem.items[i].accelerator_time.value * slowness;
    for (const Transfer& transfer : problem.transfers) {
        alone[static_cast<std::size_t>(transfer.source)] += transfer.time.value * transfer_slowness;
        for (int d : transfer.destinations)
            alone[static_cast<std::size_t>(d)] += transfer.time.value * transfer_slowness;
    }
    std::vector<double> reach(n);
    for (std::size_t i = 0; i < n; ++i) {
        const PlacementItem& item = problem.items[i];
        reach[i] = !item.runs_on_accelerator  ? 0
                   : std::isinf(cpu_slowness) ? alone[i]
                                              : std::min(item.cpu_time.value * cpu_slowness, alone[i]);
    }
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return reach[a] > reach[b]; });
    if (n == 0 || reach[order.front()] <= known) return known;

    // Vertices: items, then two a transfer, then the sink.
    const int sink = static_cast<int>(n + 2 * problem.transfers.size());
    FlowNetwork network(static_cast<std::size_t>(sink) + 1);
    for (std::size_t i = 0; i < n; ++i)
        if (problem.items[i].accelerator_time.value > 0)
            network.connect(static_cast<int>(i), sink, problem.items[i].accelerator_time.value * slowness);
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        const Transfer& transfer = problem.transfers[e];
        const int inner = static_cast<int>(n + 2 * e), outer = inner + 1;
        network.connect(inner, outer, transfer.time.value * transfer_slowness);
        auto tie = [&](int item) {
            network.connect(item, inner, infinity);
            network.connect(outer, item, infinity);
        };
        tie(transfer.source);
        for (int d : transfer.destinations) tie(d);
    }
    constexpr int most_tried = 200;  // heavy items are few; a bound may stay open
    int tried = 0;
    for (std::size_t i : order) {
        if (reach[i] <= known || ++tried > most_tried) break;
        // The flow may overshoot by rounding: the margin keeps the bound valid.
        const double lightest = network.largest_flow(static_cast<int>(i), sink, reach[i]) * (1 - 1e-12);
        known = std::max(known, std::min(lightest, reach[i]));
    }
    return known;
}

}  // namespace

core::Seconds placement_lower_bound(const PlacementProblem& problem) {
    // Fractional relaxation without transfers: a load T is possible only if the work that must stay on
    // accelerators fits in what they do in T. CPUs are filled with what saves most accelerator time per CPU
    // time, pieces allowed.
    const std::vector<DeviceClass> classes = device_classes(problem);
    double accelerators = 0, cpus = 0, fastest = infinity,
           fastest_cpu = infinity;  // in devices of slowness 1
    for (const DeviceClass& c : classes) {
        if (c.count == 0) continue;
        if (c.is_cpu) cpus += c.count / c.slowness, fastest_cpu = std::min(fastest_cpu, c.slowness);
        else accelerators += c.count / c.slowness, fastest = std::min(fastest, c.slowness);
    }
    double total = 0, must_be_on_cpu = 0, largest = 0;
    std::vector<std::pair<double, double>> movable;  // (cpu time, accelerator time)
    for (const PlacementItem& item : problem.items) {
        const double cpu = cpus > 0 ? item.cpu_time.value : infinity,
                     cpu_alone = cpus > 0 ? cpu * fastest_cpu : infinity;
        if (item.runs_on_accelerator) {
            total += item.accelerator_time.value;
            largest = std::max(largest, accelerators > 0
                                            ? std::min(cpu_alone, item.accelerator_time.value * fastest)
                                            : cpu_alone);
            if (item.accelerator_time.value > 0) movable.emplace_back(cpu, item.accelerator_time.value);
        } else {
            must_be_on_cpu += cpu;
            largest = std::max(largest, cpu_alone);
        }
    }
    std::sort(movable.begin(), movable.end(),
              [](auto a, auto b) { return a.second * b.first > b.second * a.first; });
    auto is_possible = [&](double load) {
        double room = cpus * load - must_be_on_cpu, left = total;
        if (room < -1e-12 * load) return false;
        if (cpus > 0)
            for (auto [cpu, accelerator] : movable) {
                if (cpu > room) {
                    left -= room > 0 ? accelerator * room / cpu : 0;
                    break;
                }
                room -= cpu;
                left -= accelerator;
            }
        return left <= accelerators * load * (1 + 1e-12);
    };
    double low = largest, high = std::max(largest, total + must_be_on_cpu);
    if (!is_possible(low)) {
        while (!is_possible(high) && high < 1e300) high = high > 0 ? 2 * high : 1;
        for (int i = 0; i < 100 && high - low > 1e-13 * high; ++i) {
            double middle = 0.5 * (low + high);
            (is_possible(middle) ? high : low) = middle;
        }
    }
    return core::Seconds(heaviest_item_bound(problem, classes, low));
}

}  // namespace partition
