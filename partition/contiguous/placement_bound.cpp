// Bounds that hold for every placement, contiguous or not.
//
// A device that holds item i pays for some set S around it: its work and every transfer that S tears apart
// (an end inside and an end outside, whichever). That is a cut of a hypergraph, so the lightest S is a
// minimum cut: source -> item i; item -> sink with its work; every transfer a pair of vertices joined by its
// time, with all its ends tied to both sides. No stage that holds i is lighter, and some stage holds item i.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>

#include "partition/placement.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Relative. Sums may end a rounding error above the exact sum: the margin keeps bounds valid.
constexpr double margin = 1e-12;

// Directed edges with capacities, for minimum cuts by Boykov and Kolmogorov's algorithm (PAMI 2004).
class CutNetwork {
public:
    explicit CutNetwork(std::size_t vertices) : graph_(vertices) {}

    void connect(std::size_t from, std::size_t to, double capacity) {
        const auto forth = boost::add_edge(from, to, graph_).first;
        const auto back = boost::add_edge(to, from, graph_).first;
        graph_[forth] = {.capacity = capacity, .residual = 0, .reverse = back};
        graph_[back] = {.capacity = 0, .residual = 0, .reverse = forth};
    }
    double minimum_cut(std::size_t source, std::size_t sink) {
        std::vector<boost::default_color_type> colour(boost::num_vertices(graph_));
        std::vector<long> distance(boost::num_vertices(graph_));
        std::vector<Edge> predecessor(boost::num_vertices(graph_));
        const auto index = boost::get(boost::vertex_index, graph_);
        return boost::boykov_kolmogorov_max_flow(
            graph_, boost::get(&Properties::capacity, graph_), boost::get(&Properties::residual, graph_),
            boost::get(&Properties::reverse, graph_),
            boost::make_iterator_property_map(predecessor.begin(), index),
            boost::make_iterator_property_map(colour.begin(), index),
            boost::make_iterator_property_map(distance.begin(), index), index, source, sink);
    }

private:
    // Bidirectional: of a directed list g++ 12 warns falsely when it inlines the iteration over all edges.
    using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::bidirectionalS>;
    using Edge = Traits::edge_descriptor;
    struct Properties {
        double capacity, residual;
        Edge reverse;
    };
    boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, boost::no_property, Properties>
        graph_;
};

// `bound`, or the largest of the lightest sets around heavy items where that is larger.
double heaviest_item_bound(const PlacementProblem& problem, const std::vector<DeviceClass>& classes,
                           double bound) {
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
    if (std::isinf(slowness)) return bound;
    const std::size_t n = problem.items.size();
    std::vector<double> alone(
        n);  // an item by itself on an accelerator, no better than which its lightest set is
    for (std::size_t i = 0; i < n; ++i) alone[i] = problem.items[i].accelerator_time.value * slowness;
    for (const Transfer& transfer : problem.transfers) {
        alone[transfer.source] += transfer.time.value * transfer_slowness;
        for (std::size_t d : transfer.destinations) alone[d] += transfer.time.value * transfer_slowness;
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
    if (n == 0 || reach[order.front()] <= bound) return bound;

    // Vertices: items, then two a transfer, then the sink.
    const std::size_t sink = n + 2 * problem.transfers.size();
    CutNetwork network(sink + 1);
    for (std::size_t i = 0; i < n; ++i)
        if (problem.items[i].accelerator_time.value > 0)
            network.connect(i, sink, problem.items[i].accelerator_time.value * slowness);
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        const Transfer& transfer = problem.transfers[e];
        const std::size_t inner = n + 2 * e, outer = inner + 1;
        network.connect(inner, outer, transfer.time.value * transfer_slowness);
        auto tie = [&](std::size_t item) {
            network.connect(item, inner, infinity);
            network.connect(outer, item, infinity);
        };
        tie(transfer.source);
        for (std::size_t d : transfer.destinations) tie(d);
    }
    constexpr int most_tried = 200;  // heavy items are few; a bound may stay open
    int tried = 0;
    for (std::size_t i : order) {
        if (reach[i] <= bound || ++tried > most_tried) break;
        // The flow may overshoot by rounding: the margin keeps the bound valid.
        const double lightest = network.minimum_cut(i, sink) * (1 - margin);
        bound = std::max(bound, std::min(lightest, reach[i]));
    }
    return bound;
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
        if (room < -margin * load) return false;
        if (cpus > 0)
            for (auto [cpu, accelerator] : movable) {
                if (cpu > room) {
                    left -= room > 0 ? accelerator * room / cpu : 0;
                    break;
                }
                room -= cpu;
                left -= accelerator;
            }
        return left <= accelerators * load * (1 + margin);
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
