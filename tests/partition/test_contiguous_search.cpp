#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "partition/contiguous/linear_placement.h"
#include "partition/deadline.h"
#include "partition/placement.h"
#include "partition/reader/dnn_partitioning.h"

using namespace partition;

namespace {

const std::string graphs = SHARED_DIR "/reference/partitioning/graphs/dnn-partitioning";

PlacementProblem load(const std::string& path) {
    core::Diagnostics diagnostics;
    auto document = core::load_document(path, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document);
    auto problem = read_dnn_partitioning(*document, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(problem);
    return *problem;
}

}  // namespace

TEST_CASE("a placement does not depend on the number of threads") {
    // Wide enough for threads to be started: 5 chains of 8 items between a fork and a join, with loads that
    // differ.
    PlacementProblem problem;
    core::Random random(5);
    for (int i = 0; i < 42; ++i) {
        PlacementItem item;
        item.nodes = {i};
        item.accelerator_time = item.cpu_time =
            core::Seconds(1 + static_cast<double>(random.below(1000)) / 7);
        item.memory = core::Bytes(1);
        problem.items.push_back(item);
    }
    for (int chain = 0; chain < 5; ++chain)
        for (int i = 0; i <= 8; ++i) {
            const std::size_t before = i == 0 ? 0 : 1 + chain * 8 + i - 1,
                              after = i == 8 ? 41 : 1 + chain * 8 + i;
            problem.precedence.emplace_back(before, after);
            problem.transfers.push_back(
                {before, {after}, core::Seconds(static_cast<double>(random.below(20)))});
        }
    std::sort(problem.precedence.begin(), problem.precedence.end());
    problem.accelerators = 6;
    problem.memory_limit = core::Bytes(9);
    PlacementOptions one, four;
    one.threads = 1;
    four.threads = 4;
    const PlacementResult a = place_contiguous(problem, one), b = place_contiguous(problem, four);
    REQUIRE(a.is_proven_optimal);
    REQUIRE(b.is_proven_optimal);
    CHECK(a.objective == b.objective);
    REQUIRE(a.stages.size() == b.stages.size());
    for (std::size_t s = 0; s < a.stages.size(); ++s) CHECK(a.stages[s].items == b.stages[s].items);
}

TEST_CASE("the published optima of dnn-partitioning are reproduced and proven") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    struct Row {
        const char* file;
        double optimum;  // milliseconds; reference/partitioning/partitioning.md
    };
    for (Row row :
         {Row{"LayerGraphs/bert24_inference", 17.789906}, Row{"LayerGraphs/bert24_training", 41.745812},
          Row{"LayerGraphs/resnet50_inference", 33.774666}, Row{"LayerGraphs/gnmt_inference", 32.910658},
          Row{"LayerGraphs/inceptionv3_inference", 51.551864},
          Row{"OperatorGraphs/bert_l-3_inference", 27.918568},
          Row{"OperatorGraphs/bert_l-3_training", 65.303149},
          Row{"OperatorGraphs/bert_l-6_inference", 29.579506},
          Row{"OperatorGraphs/bert_l-12_inference", 147.477984},
          Row{"OperatorGraphs/resnet50_inference", 124.348850}}) {
        INFO(row.file);
        PlacementResult result = place_contiguous(load(graphs + "/throughput-inputs/" + row.file + ".json"));
        CHECK(result.is_proven_optimal);
        CHECK(result.objective.value * 1e3 == Approx(row.optimum).margin(6e-7));
    }
}

TEST_CASE("where memory leaves hardly any room, gnmt is placed or excluded at once") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    // 2.3 GiB on devices of 600 MiB; fifteen work-free items of half a mebibyte may lie in any later stage.
    PlacementProblem problem = load(graphs + "/latency-inputs/LayerGraphs/gnmt_inference.json");
    problem.accelerators = 4;
    problem.cpus = 0;
    const PlacementResult without = place_contiguous(problem, {.time_limit = core::Seconds(20)});
    CHECK(without.is_proven_infeasible);
    problem.cpus = 1;
    const PlacementResult with = place_contiguous(problem, {.time_limit = core::Seconds(20)});
    CHECK(with.is_proven_optimal);
    for (const PlacedStage& stage : with.stages)
        if (!stage.is_cpu) CHECK(stage.memory <= *problem.memory_limit);
    problem.accelerators = 5;
    problem.cpus = 0;
    CHECK(place_contiguous(problem, {.time_limit = core::Seconds(20)}).is_proven_optimal);
}

TEST_CASE("the loads of the expert splits are reproduced by the checker") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    struct Row {
        const char* file;
        double load;
    };
    for (Row row :
         {Row{"bert24_inference", 20.084}, Row{"bert24_training", 49.4049}, Row{"gnmt_inference", 46.2085},
          Row{"resnet50_inference", 43.9183}, Row{"inceptionv3_inference", 102.482}}) {
        INFO(row.file);
        PlacementProblem problem = load(graphs + "/throughput-inputs/LayerGraphs/" + row.file + ".json");
        core::Diagnostics diagnostics;
        auto document =
            core::load_document(graphs + "/human-experts/" + row.file + "_expert.json", diagnostics);
        REQUIRE(document);
        auto stages = read_dnn_partitioning_split(*document, problem, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(stages);
        CHECK(largest_load(problem, *stages).value * 1e3 == Approx(row.load).epsilon(5e-6));
    }
}

TEST_CASE("without contiguity the three published local searches are matched within memory") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    struct Row {
        const char* file;
        double at_most;
    };
    for (Row row : {Row{"LayerGraphs/bert24_inference", 17.7776}, Row{"LayerGraphs/bert24_training", 39.9432},
                    Row{"OperatorGraphs/bert_l-3_inference", 27.5741}}) {
        INFO(row.file);
        PlacementProblem problem = load(graphs + "/throughput-inputs/" + row.file + ".json");
        PlacementResult result = place_anywhere(problem, {.time_limit = core::Seconds(120)});
        REQUIRE(result.is_feasible);
        CHECK(result.objective.value * 1e3 <= row.at_most + 5e-5);  // the figure is rounded to four digits
        CHECK(result.lower_bound.value > 0);
        for (const PlacedStage& stage : result.stages)
            if (!stage.is_cpu) CHECK(stage.memory <= *problem.memory_limit);
    }
}

TEST_CASE("a graph that cannot fit says what is missing") {
    PlacementProblem problem;
    for (int i = 0; i < 4; ++i) {
        PlacementItem item;
        item.nodes = {10 + i};
        item.accelerator_time = item.cpu_time = core::seconds(1);
        item.memory = core::Bytes(3);
        problem.items.push_back(item);
        if (i > 0) problem.precedence.emplace_back(i - 1, i);
    }
    problem.accelerators = 2;
    problem.memory_limit = core::Bytes(5);  // one item a device: four devices needed
    PlacementResult result = place_contiguous(problem);
    CHECK_FALSE(result.is_feasible);
    CHECK(result.is_proven_infeasible);
    CHECK(result.reason.find("12 bytes") != std::string::npos);  // 4 * 3 against 2 * 5
    problem.memory_limit = core::Bytes(2);
    CHECK(place_contiguous(problem).reason.find("node 10") != std::string::npos);
    problem.cpus = 1;  // a CPU has no limit
    CHECK(place_contiguous(problem).objective.value == Approx(4));
}

TEST_CASE("a chain of 20,000 nodes on 1,000 devices is placed within its time limit, or soon after") {
    PlacementProblem problem;
    for (int i = 0; i < 20000; ++i) {
        problem.items.push_back({.nodes = {i},
                                 .accelerator_time = core::Seconds(1),
                                 .cpu_time = core::Seconds(1),
                                 .memory = {},
                                 .activations = {}});
        if (i > 0) problem.precedence.emplace_back(i - 1, i);
    }
    problem.accelerators = 1000;
    PlacementOptions options;
    options.time_limit = core::Seconds(2);
    const std::clock_t begin = std::clock();
    const PlacementResult result = place_contiguous(problem, options);
    // The dynamic program would take 20,000^2 / 2 * 1,000 = 2e11 steps, minutes of a processor; what does not
    // look at the clock is O(items^2 / 64).
    CHECK((std::clock() - begin) / CLOCKS_PER_SEC < 90);
    REQUIRE(result.is_feasible);
    CHECK(result.objective == core::Seconds(20));  // 20,000 equal nodes over 1,000 devices
    CHECK(result.lower_bound == core::Seconds(20));
    CHECK(result.is_proven_optimal);
}

TEST_CASE("four kinds of 100 devices each do not fill the host's memory") {
    // 101^4 ways to have used devices, for each of 100 places in the order: 10^10 entries, where 10^7 are
    // affordable.
    PlacementProblem problem;
    for (std::size_t i = 0; i < 100; ++i) {
        problem.items.push_back({.nodes = {static_cast<std::int64_t>(i)},
                                 .accelerator_time = core::Seconds(12),
                                 .cpu_time = core::Seconds(12),
                                 .memory = {},
                                 .activations = {}});
        if (i > 0) {
            problem.precedence.emplace_back(i - 1, i);
            problem.transfers.push_back({i - 1, {i}, core::Seconds(1)});
        }
    }
    for (double slowness : {1.0, 2.0, 3.0, 4.0})
        problem.devices.push_back({.name = "speed", .count = 100, .slowness = slowness});
    PlacementOptions options;
    options.time_limit = core::Seconds(1);
    const PlacementResult result = place_contiguous(problem, options);
    REQUIRE(result.is_feasible);
    CHECK(result.objective.value <=
          14);  // each node alone on the fastest kind, with the transfers before and behind
    CHECK(result.objective >= result.lower_bound);
    const std::vector<PlacedStage> chain = place_on_orders(problem);
    REQUIRE_FALSE(chain.empty());
    CHECK(largest_load(problem, chain).value <= 14);
}

TEST_CASE(
    "stages filled one after the other respect memory, order and kind, and are as good as the dynamic "
    "program on equal items") {
    // A deadline that is over leaves the filling alone.
    const Deadline over(std::chrono::steady_clock::time_point::min());
    for (int devices : {1, 3, 4, 7}) {
        PlacementProblem problem;
        for (int i = 0; i < 24; ++i) {
            problem.items.push_back({.nodes = {i},
                                     .accelerator_time = core::Seconds(1),
                                     .cpu_time = core::Seconds(5),
                                     .memory = core::Bytes(2),
                                     .activations = core::Bytes(1)});
            if (i > 0) problem.precedence.emplace_back(i - 1, i);
        }
        problem.accelerators = devices;
        problem.micro_batches = 3;
        problem.memory_limit = core::Bytes(24 / devices * 5 + 5);
        const std::vector<PlacedStage> filled = place_on_orders(problem, over),
                                       best = place_on_orders(problem);
        REQUIRE_FALSE(filled.empty());
        CHECK(largest_load(problem, filled) == largest_load(problem, best));
        CHECK(largest_load(problem, best) == core::Seconds(std::ceil(24.0 / devices)));
        for (const PlacedStage& stage : filled) CHECK(stage.memory <= *problem.memory_limit);
        // A node that only a CPU may run is left to the CPU, and nothing is possible without one.
        problem.items[11].runs_on_accelerator = false;
        CHECK(place_on_orders(problem, over).empty());
        problem.cpus = 1;
        if (devices == 1) continue;  // the nodes before and behind are two stages
        const std::vector<PlacedStage> with_cpu = place_on_orders(problem, over);
        REQUIRE_FALSE(with_cpu.empty());
        for (const PlacedStage& stage : with_cpu)
            if (std::find(stage.items.begin(), stage.items.end(), 11) != stage.items.end())
                CHECK(stage.is_cpu);
    }
}
