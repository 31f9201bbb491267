#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "model/load.h"
#include "partition/baseline/baseline_placement.h"
#include "partition/model_placement.h"
#include "partition/reader/costed_graph.h"
#include "partition/reader/dnn_partitioning.h"
#include "planner/search_space.h"
#include "sim/cost/compute.h"

using namespace partition;

namespace {

const std::string graphs = SHARED_DIR "/reference/partitioning/graphs/dnn-partitioning";

// The exact search against every baseline whose stages respect order and memory; how many did.
int check_never_worse(const PlacementProblem& problem, const ModuleTree& tree) {
    const PlacementResult exact = place_contiguous(problem, {.time_limit = core::Seconds(20)});
    std::vector<std::vector<PlacedStage>> baselines{place_chain(problem), place_multilevel(problem)};
    for (double weight : {0.0, 0.2, 0.8, 1.0}) baselines.push_back(place_smp_tree(problem, tree, weight));
    int compared = 0;
    for (const std::vector<PlacedStage>& stages : baselines) {
        if (stages.empty() || !is_valid_placement(problem, stages)) continue;
        REQUIRE(exact.is_feasible);
        CHECK(exact.objective <= largest_load(problem, stages) * (1 + 1e-9));
        ++compared;
    }
    return compared;
}

PlacementItem item(double time, double memory = 0) {
    PlacementItem result;
    result.accelerator_time = result.cpu_time = core::Seconds(time);
    result.memory = core::Bytes(memory);
    return result;
}

}  // namespace

TEST_CASE(
    "the exact search is never worse than SMP's tree, a chain or a multilevel partitioner on the models of "
    "the catalogue") {
    core::Diagnostics diagnostics;
    const auto instance = cluster::load_instance("p4d.24xlarge", diagnostics);
    REQUIRE(instance);
    cluster::Cluster cluster;
    cluster.instance = *instance;
    int compared = 0;
    for (const std::string& name : model::catalogue_names()) {
        core::Diagnostics problems;
        const auto graph = model::load_model(name, {}, problems);
        REQUIRE(graph);
        schedule::Plan plan = planner::default_plan(instance->device);
        for (model::AttentionImplementation attention :
             {model::AttentionImplementation::fused_softmax, model::AttentionImplementation::unfused}) {
            core::Diagnostics refused;
            if (sim::ComputeCost::make(*graph, instance->device, plan, refused)) break;
            plan.attention = attention;
        }
        for (Granularity granularity : {Granularity::unit, Granularity::module}) {
            auto placement =
                model_placement(*graph, cluster, plan, 4, granularity, TiedParameters::copied, problems);
            INFO(name << core::format(problems));
            REQUIRE(placement);
            placement->problem.memory_limit = std::nullopt;
            compared += check_never_worse(placement->problem, module_tree(*graph, *placement));
            if (placement->problem.items.size() > 300) break;
        }
    }
    CHECK(compared > 200);
}

TEST_CASE("nor on the graphs of dnn-partitioning") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    int compared = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(graphs + "/throughput-inputs")) {
        if (entry.path().extension() != ".json") continue;
        core::Diagnostics diagnostics;
        const auto document = core::load_document(entry.path().string(), diagnostics);
        REQUIRE(document);
        auto problem = read_dnn_partitioning(*document, diagnostics);
        REQUIRE(problem);
        INFO(entry.path());
        compared += check_never_worse(*problem, flat_tree(*problem));
    }
    CHECK(compared > 30);
}

TEST_CASE("SMP's tree deals devices to segments in proportion to cost") {
    // Root with children of cost 6 (two leaves of 3) and 2, three devices: one segment and one device a
    // child; D'Hondt gives the third to 6/2 against 2/2.
    PlacementProblem problem;
    problem.items = {item(3), item(3), item(2)};
    problem.precedence = {{0, 1}, {1, 2}};
    problem.accelerators = 3;
    ModuleTree tree;
    tree.modules = {{{1, 2}, {}}, {{3, 4}, {}}, {{}, {2}}, {{}, {0}}, {{}, {1}}};
    const auto stages = place_smp_tree(problem, tree, 0);
    REQUIRE(stages.size() == 3);
    CHECK(stages[0].items == std::vector<std::size_t>{0});
    CHECK(stages[1].items == std::vector<std::size_t>{1});
    CHECK(stages[2].items == std::vector<std::size_t>{2});
}

TEST_CASE(
    "memory_weight 0 finds the least largest time and 1 the least largest memory, as enumeration of all cuts "
    "does") {
    core::Random random(3);
    for (int round = 0; round < 100; ++round) {
        PlacementProblem problem;
        const int n = 2 + static_cast<int>(random.below(11));
        for (int i = 0; i < n; ++i)
            problem.items.push_back(
                item(1 + static_cast<double>(random.below(9)), 1 + static_cast<double>(random.below(9))));
        for (int i = 1; i < n; ++i) problem.precedence.emplace_back(i - 1, i);
        problem.accelerators = 2;
        double best_time = INFINITY, best_memory = INFINITY;
        for (int cut = 0; cut < n; ++cut) {  // a chain on two devices: every cut
            double time[2] = {0, 0}, memory[2] = {0, 0};
            for (int i = 0; i < n; ++i) {
                time[i > cut] += problem.items[static_cast<std::size_t>(i)].accelerator_time.value;
                memory[i > cut] += problem.items[static_cast<std::size_t>(i)].memory.value;
            }
            best_time = std::min(best_time, std::max(time[0], time[1]));
            best_memory = std::min(best_memory, std::max(memory[0], memory[1]));
        }
        auto largest = [&](const std::vector<PlacedStage>& stages, bool of_memory) {
            double value = 0;
            for (const PlacedStage& stage : stages) {
                const PlacedStage real = stage_of(problem, stage.items, 0);
                value = std::max(value, of_memory ? real.memory.value : real.load.value);
            }
            return value;
        };
        CHECK(largest(place_contiguous(weighed(problem, 0)).stages, false) == best_time);
        CHECK(largest(place_contiguous(weighed(problem, 1)).stages, true) == best_memory);
        CHECK(largest(place_smp_tree(problem, flat_tree(problem), 0), false) == best_time);
        CHECK(largest(place_smp_tree(problem, flat_tree(problem), 1), true) == best_memory);
    }
}

TEST_CASE(
    "tied parameters lie on one device when they are to stay together, and operators without parameters lie "
    "with their parent's leaf") {
    core::Diagnostics diagnostics;
    const auto instance = cluster::load_instance("p4d.24xlarge", diagnostics);
    const auto graph = model::load_model("gpt2", {}, diagnostics);
    REQUIRE(instance);
    REQUIRE(graph);
    cluster::Cluster cluster;
    cluster.instance = *instance;
    const schedule::Plan plan = planner::default_plan(instance->device);
    for (Granularity granularity : {Granularity::unit, Granularity::module, Granularity::operation}) {
        const auto together =
            model_placement(*graph, cluster, plan, 4, granularity, TiedParameters::together, diagnostics);
        REQUIRE(together);
        // The embedding and the head share a parameter, so they and all between them are one item of an
        // order.
        CHECK(together->problem.items.size() < 4);
        const auto copied =
            model_placement(*graph, cluster, plan, 4, granularity, TiedParameters::copied, diagnostics);
        REQUIRE(copied);
        CHECK(copied->problem.items.size() >= graph->units.size());
        std::size_t operators = 0;
        for (const auto& group : copied->operators) operators += group.size();
        const auto inputs =
            std::count_if(graph->operators.begin(), graph->operators.end(),
                          [](const model::Operator& op) { return op.kind == model::OperatorKind::input; });
        CHECK(operators + static_cast<std::size_t>(inputs) == graph->operators.size());
        if (granularity != Granularity::module) continue;
        for (const auto& group : copied->operators)
            CHECK(std::count_if(group.begin(), group.end(), [&](int op) {
                      return !graph->operators[static_cast<std::size_t>(op)].parameters.empty();
                  }) == 1);
    }
}

TEST_CASE(
    "a costed graph in TOML keeps colocation, unlike devices and micro-batches in flight, and names what is "
    "wrong") {
    const std::string text =
        "version = 1\n[graph]\nbandwidth = \"1GB/s\"\nmicro_batches = 2\n[[device]]\nname = \"fast\"\nspeed "
        "= 2.0\nmemory = \"10B\"\n[[device]]\nname = \"slow\"\nmemory = \"100B\"\n"
        "[[node]]\nname = \"a\"\ntime = \"4s\"\nactivations = \"4B\"\noutput = \"500MB\"\n"
        "[[node]]\nname = \"b\"\ntime = \"1s\"\ninputs = [\"a\"]\ncolocate = \"x\"\n[[node]]\nname = "
        "\"c\"\ntime = \"1s\"\ninputs = [\"b\"]\ncolocate = \"x\"\n";
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(text, "g.toml", diagnostics);
    REQUIRE(document);
    const auto problem = read_costed_graph(*document, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(problem);
    REQUIRE(problem->items.size() == 2);                         // a; b and c
    CHECK(problem->transfers.front().time == core::Seconds(1));  // 500 MB forward and back at 1 GB/s
    // a on the fast device with two micro-batches in flight: 4/2 + 1 = 3 s, 8 of 10 bytes; b and c on the
    // slow one: 2 + 1 = 3 s. Everything on the fast one: 3 s too.
    const PlacementResult result = place_contiguous(*problem);
    CHECK(result.objective.value == Approx(3));
    auto refusal = [&](const std::string& changed, const std::string& by) {
        std::string broken = text;
        broken.replace(broken.find(changed), changed.size(), by);
        core::Diagnostics problems;
        const auto value = core::parse_toml(broken, "g.toml", problems);
        REQUIRE(value);
        CHECK_FALSE(read_costed_graph(*value, problems));
        return core::format(problems);
    };
    CHECK(refusal("inputs = [\"b\"]", "inputs = [\"bb\"]").find("'bb' names no node") != std::string::npos);
    CHECK(refusal("inputs = [\"a\"]", "inputs = [\"c\"]").find("cycle") != std::string::npos);
    CHECK(refusal("bandwidth = \"1GB/s\"\n", "").find("no bandwidth is given") != std::string::npos);
    CHECK(refusal("name = \"b\"", "name = \"a\"").find("appears twice") != std::string::npos);
}
