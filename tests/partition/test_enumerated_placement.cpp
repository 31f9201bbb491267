// Every search against enumeration on random graphs of up to 12 items. SMSIM_ROUNDS=5000 makes the same tests
// ten times as long.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "partition/placement.h"
#include "partition/reader/dnn_partitioning.h"
#include "tests/partition/enumeration.h"

using namespace partition;

namespace {

int rounds() {
    const char* given = std::getenv("SMSIM_ROUNDS");
    return given ? std::max(1, std::atoi(given)) : 500;
}

PlacementProblem random_problem(core::Random& random, std::size_t most_items = 12) {
    PlacementProblem problem;
    const std::size_t n = 2 + random.below(most_items - 1);
    const double density = random.uniform();
    double total_memory = 0;
    for (std::size_t i = 0; i < n; ++i) {
        PlacementItem item;
        item.nodes = {static_cast<std::int64_t>(i)};
        const bool is_free = random.below(3) == 0;  // work-free items exercise the reduction
        item.accelerator_time = core::Seconds(is_free ? 0 : 1 + static_cast<double>(random.below(20)));
        item.cpu_time = item.accelerator_time * (is_free ? 0 : 0.5 + 4 * random.uniform());
        item.memory = core::Bytes(static_cast<double>(random.below(4)));
        item.runs_on_accelerator = random.below(16) != 0;
        total_memory += item.memory.value;
        problem.items.push_back(item);
    }
    for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = a + 1; b < n; ++b)
            if (random.uniform() < density) problem.precedence.emplace_back(a, b);
    for (std::size_t i = 0; i < n; ++i) {
        Transfer transfer{
            .source = i, .destinations = {}, .time = core::Seconds(static_cast<double>(random.below(6)))};
        const bool is_gradient =
            random.below(4) == 0;  // transfers against the order, as backward nodes make them
        for (auto [a, b] : problem.precedence)
            if ((is_gradient ? b : a) == i && random.below(4) != 0)
                transfer.destinations.push_back(is_gradient ? a : b);
        if (!transfer.destinations.empty() && transfer.time.value > 0) problem.transfers.push_back(transfer);
    }
    problem.accelerators = static_cast<int>(random.below(6));
    problem.cpus = static_cast<int>(random.below(3));
    if (random.below(2) == 0)
        problem.memory_limit =
            core::Bytes(1 + static_cast<double>(random.below(static_cast<std::uint64_t>(total_memory) + 1)));
    return problem;
}

// Up to three classes of devices with speeds, links and memories of their own; activations of several
// micro-batches in flight.
void make_uneven(PlacementProblem& problem, core::Random& random) {
    double kept = 0;
    for (PlacementItem& item : problem.items) {
        item.activations = core::Bytes(static_cast<double>(random.below(3)));
        kept += item.memory.value + item.activations.value;
    }
    problem.micro_batches = 1 + static_cast<int>(random.below(4));
    const std::size_t classes = 1 + random.below(3);
    for (std::size_t c = 0; c < classes; ++c) {
        DeviceClass device{.name = std::string(1, static_cast<char>('a' + c)),
                           .count = static_cast<int>(random.below(3)),
                           .is_cpu = c == 2};
        device.slowness = 1 + 0.5 * static_cast<double>(random.below(4));
        device.transfer_slowness = 1 + static_cast<double>(random.below(2));
        if (random.below(3)) device.memory_limit = core::Bytes(1 + kept * random.uniform() * 1.5);
        problem.devices.push_back(device);
    }
}

struct Tally {
    int feasible = 0, infeasible = 0;
    std::size_t largest = 0;
};

// The verdict and the optimum of enumeration; false where there is no placement.
bool check_verdict(const PlacementProblem& problem, const PlacementResult& result, double want,
                   Tally& tally) {
    tally.largest = std::max(tally.largest, problem.items.size());
    REQUIRE(result.is_feasible == std::isfinite(want));
    if (!result.is_feasible) {
        ++tally.infeasible;
        CHECK(result.is_proven_infeasible);
        CHECK_FALSE(result.reason.empty());
        return false;
    }
    ++tally.feasible;
    CHECK(result.is_proven_optimal);
    CHECK(result.objective.value == Approx(want).epsilon(1e-9).margin(1e-12));
    CHECK(result.lower_bound == result.objective);
    CHECK(largest_load(problem, result.stages) == result.objective);
    return true;
}

void check_contiguous(const PlacementProblem& problem, const PlacementResult& result, double want,
                      Tally& tally) {
    if (!check_verdict(problem, result, want, tally)) return;
    CHECK(placement_lower_bound(problem).value <= want * (1 + 1e-9));
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<int> used(classes.size(), 0);
    for (const PlacedStage& stage : result.stages) {
        ++used[stage.device_class];
        if (!stage.is_cpu) CHECK(stage.memory <= classes[stage.device_class].most_memory());
    }
    for (std::size_t c = 0; c < used.size(); ++c) CHECK(used[c] <= classes[c].count);
    // Contiguous: no edge runs back to an earlier stage.
    std::vector<std::size_t> stage_of_item(problem.items.size());
    for (std::size_t s = 0; s < result.stages.size(); ++s)
        for (std::size_t i : result.stages[s].items) stage_of_item[i] = s;
    for (auto [a, b] : problem.precedence) CHECK(stage_of_item[a] <= stage_of_item[b]);
}

void check_anywhere(const PlacementProblem& problem, double contiguous, double free, Tally& tally) {
    // A pipeline's stages keep fewer micro-batches than devices that may be visited at any time: the better
    // of both.
    check_verdict(problem, place_anywhere(problem), std::min(contiguous, free), tally);
}

void check_all_modes(bool is_uneven, std::uint64_t seed) {
    core::Random random(seed);
    Tally contiguous, anywhere;
    for (int round = 0; round < rounds(); ++round) {
        PlacementProblem problem = random_problem(random);
        if (is_uneven) make_uneven(problem, random);
        INFO("round " << round << ", " << problem.items.size() << " items");
        const enumeration::Enumeration every(problem);
        const double in_order = every.contiguous();
        check_contiguous(problem, place_contiguous(problem), in_order, contiguous);
        check_anywhere(problem, in_order, every.anywhere(), anywhere);
    }
    CHECK(contiguous.largest == 12);
    // The verdict was exercised too.
    CHECK(contiguous.infeasible > rounds() / 25);
    CHECK(anywhere.infeasible > rounds() / 25);
    CHECK(contiguous.feasible > rounds() / 3);
}

}  // namespace

TEST_CASE(
    "contiguous and free placements equal enumeration on 500 random graphs of up to 12 items with CPUs and "
    "memory limits, verdicts included") {
    check_all_modes(false, 20261121);
}

TEST_CASE("so they do on 500 with unlike devices and micro-batches in flight") { check_all_modes(true, 14); }

namespace {

// A training graph as the files of dnn-partitioning state it, before any grouping.
struct FileGraph {
    struct Node {
        double cpu, accelerator, output, size;  // milliseconds, bytes
        bool runs_on_accelerator, is_backward;
        int color;
    };
    std::vector<Node> nodes;
    std::vector<std::pair<int, int>> edges;
    int colors = 0, accelerators = 1, cpus = 0;
    double memory_limit = 0;
};

FileGraph random_file(core::Random& random) {
    FileGraph graph;
    const int forward = 2 + static_cast<int>(random.below(5));
    auto node = [&](bool is_backward, int color) {
        const double time = static_cast<double>(random.below(12));
        graph.nodes.push_back({time * (1 + 3 * random.uniform()), time, static_cast<double>(random.below(5)),
                               static_cast<double>(random.below(5)), random.below(20) != 0, is_backward,
                               color});
    };
    for (int i = 0; i < forward; ++i)
        node(false, i > 0 && random.below(6) == 0
                        ? static_cast<int>(random.below(static_cast<std::uint64_t>(graph.colors)))
                        : graph.colors++);
    for (int a = 0; a < forward; ++a)
        for (int b = a + 1; b < forward; ++b)
            if (random.below(2) || b == a + 1) graph.edges.emplace_back(a, b);
    // Backward: partners of some forward nodes in their colour, gradients' own nodes in colours of their own;
    // the mirror of the forward edges, and from the loss.
    std::vector<int> partner(static_cast<std::size_t>(forward), -1);
    for (int i = forward - 1; i >= 0 && random.below(8) != 0; --i) {
        const bool is_own = graph.colors < 8 && random.below(4) == 0;
        partner[static_cast<std::size_t>(i)] = static_cast<int>(graph.nodes.size());
        node(true, is_own ? graph.colors : graph.nodes[static_cast<std::size_t>(i)].color);
        graph.colors += is_own;
    }
    for (auto [a, b] : std::vector<std::pair<int, int>>(graph.edges))
        if (partner[static_cast<std::size_t>(a)] >= 0 && partner[static_cast<std::size_t>(b)] >= 0)
            graph.edges.emplace_back(partner[static_cast<std::size_t>(b)],
                                     partner[static_cast<std::size_t>(a)]);
    for (int i = 0; i < forward; ++i)
        if (partner[static_cast<std::size_t>(i)] >= 0 && random.below(2))
            graph.edges.emplace_back(i, partner[static_cast<std::size_t>(i)]);
    double total = 0;
    for (const FileGraph::Node& n : graph.nodes) total += n.size;
    graph.accelerators = 1 + static_cast<int>(random.below(3));
    graph.cpus = static_cast<int>(random.below(2));
    graph.memory_limit = random.below(2) ? total : 1 + std::floor(total * random.uniform());
    return graph;
}

core::Value document_of(const FileGraph& graph) {
    core::Value document = core::Value::table();
    document["maxSizePerFPGA"] = graph.memory_limit;
    document["maxFPGAs"] = static_cast<std::int64_t>(graph.accelerators);
    document["maxCPUs"] = static_cast<std::int64_t>(graph.cpus);
    document["nodes"] = core::Value::array();
    document["edges"] = core::Value::array();
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        const FileGraph::Node& n = graph.nodes[i];
        core::Value node = core::Value::table();
        node["id"] = static_cast<std::int64_t>(i);
        node["supportedOnFpga"] = static_cast<std::int64_t>(n.runs_on_accelerator);
        node["cpuLatency"] = n.cpu;
        node["fpgaLatency"] = n.accelerator;
        node["isBackwardNode"] = static_cast<std::int64_t>(n.is_backward);
        node["colorClass"] = static_cast<std::int64_t>(n.color);
        node["size"] = n.size;
        document["nodes"].append(std::move(node));
    }
    for (auto [from, to] : graph.edges) {
        core::Value edge = core::Value::table();
        edge["sourceId"] = static_cast<std::int64_t>(from);
        edge["destId"] = static_cast<std::int64_t>(to);
        edge["cost"] = graph.nodes[static_cast<std::size_t>(from)].output;
        document["edges"].append(std::move(edge));
    }
    return document;
}

// Every way to give each colour a place in a row of devices, in every order of accelerators and CPUs; loads
// node by node as the format's description has them.
struct FileEnumeration {
    const FileGraph& graph;
    bool is_contiguous;
    std::vector<char> is_cpu, has_forward;
    std::vector<int> place;
    double best = std::numeric_limits<double>::infinity();

    FileEnumeration(const FileGraph& g, bool contiguous)
        : graph(g),
          is_contiguous(contiguous),
          has_forward(static_cast<std::size_t>(g.colors), 0),
          place(static_cast<std::size_t>(g.colors), 0) {
        for (const FileGraph::Node& n : graph.nodes)
            if (!n.is_backward) has_forward[static_cast<std::size_t>(n.color)] = 1;
        const std::size_t devices = static_cast<std::size_t>(graph.accelerators + graph.cpus);
        for (std::size_t cpu_place = 0; cpu_place < (graph.cpus ? devices : 1); ++cpu_place) {
            is_cpu.assign(devices, 0);
            if (graph.cpus) is_cpu[cpu_place] = 1;
            assign(0);
        }
    }
    int place_of(int node) const {
        return place[static_cast<std::size_t>(graph.nodes[static_cast<std::size_t>(node)].color)];
    }
    void assign(std::size_t color) {
        if (color == place.size()) return judge();
        for (std::size_t d = 0; d < is_cpu.size(); ++d) {
            place[color] = static_cast<int>(d);
            assign(color + 1);
        }
    }
    void judge() {
        for (auto [u, v] : graph.edges) {
            if (!is_contiguous) break;
            const FileGraph::Node &a = graph.nodes[static_cast<std::size_t>(u)],
                                  &b = graph.nodes[static_cast<std::size_t>(v)];
            if (!a.is_backward && !b.is_backward && place_of(u) > place_of(v)) return;
            const bool has_twin = !has_forward[static_cast<std::size_t>(a.color)] ||
                                  !has_forward[static_cast<std::size_t>(b.color)];
            if (a.is_backward && b.is_backward && has_twin && place_of(v) > place_of(u)) return;
        }
        double largest = 0;
        for (std::size_t d = 0; d < is_cpu.size(); ++d) {
            double load = 0, memory = 0;
            for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
                const FileGraph::Node& n = graph.nodes[i];
                const bool is_here = place_of(static_cast<int>(i)) == static_cast<int>(d);
                if (is_here && !is_cpu[d] && !n.runs_on_accelerator) return;
                if (is_here) memory += n.size;
                if (is_here) load += is_cpu[d] ? n.cpu : n.accelerator;
                if (is_cpu[d]) continue;
                bool is_torn = false;
                for (auto [u, v] : graph.edges)
                    if (u == static_cast<int>(i))
                        is_torn = is_torn || (is_here ? place_of(v) != static_cast<int>(d)
                                                      : place_of(v) == static_cast<int>(d));
                if (is_torn) load += n.output;
            }
            if (!is_cpu[d] && memory > graph.memory_limit) return;
            largest = std::max(largest, load);
        }
        best = std::min(best, largest);
    }
};

}  // namespace

TEST_CASE(
    "training graphs of the dnn-partitioning format, colours and backward halves included, equal enumeration "
    "node by node") {
    core::Random random(33);
    Tally tally;
    int trained = 0, fused = 0;
    std::size_t largest = 0;
    for (int round = 0; round < rounds(); ++round) {
        FileGraph graph = random_file(random);
        while (std::pow(graph.accelerators + graph.cpus, graph.colors) > 70000) graph = random_file(random);
        INFO("round " << round << ", " << graph.nodes.size() << " nodes");
        const core::Value document = document_of(graph);
        for (const bool is_contiguous : {true, false}) {
            core::Diagnostics diagnostics;
            const auto problem = read_dnn_partitioning(document, diagnostics, is_contiguous);
            INFO(core::format(diagnostics));
            REQUIRE(problem);
            fused += static_cast<int>(problem->items.size()) < graph.colors;
            const FileEnumeration every(graph, is_contiguous);
            const PlacementResult result =
                is_contiguous ? place_contiguous(*problem) : place_anywhere(*problem);
            check_verdict(*problem, result, every.best * 1e-3, tally);  // the format's times are milliseconds
        }
        largest = std::max(largest, graph.nodes.size());
        trained += std::any_of(graph.nodes.begin(), graph.nodes.end(),
                               [](const FileGraph::Node& n) { return n.is_backward; });
    }
    CHECK(largest >= 10);
    CHECK(tally.infeasible > rounds() / 25);
    CHECK(trained > rounds() / 3);
    CHECK(fused > rounds() / 25);
}
