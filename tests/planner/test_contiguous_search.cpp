#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/document.h"
#include "core/random.h"
#include "planner/linear_placement.h"
#include "planner/placement.h"
#include "planner/reader/dnn_partitioning.h"

using namespace planner;

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

// The oracle: every chain of downsets by recursion over every subset, loads by the definition, no bound and no reduction.
struct Oracle {
    const PlacementProblem& problem;
    std::vector<std::uint32_t> before;
    double best = std::numeric_limits<double>::infinity();

    explicit Oracle(const PlacementProblem& p) : problem(p), before(p.items.size(), 0) {
        for (auto [a, b] : p.precedence) before[static_cast<std::size_t>(b)] |= 1u << a;
    }
    bool is_downset(std::uint32_t set) const {
        for (std::size_t i = 0; i < before.size(); ++i)
            if ((set >> i & 1) && (before[i] & ~set)) return false;
        return true;
    }
    static std::vector<int> items_of(std::uint32_t set) {
        std::vector<int> items;
        for (int i = 0; i < 32; ++i)
            if (set >> i & 1) items.push_back(i);
        return items;
    }
    bool accelerator_allows(const PlacedStage& stage) const {
        return stage.memory <= problem.memory_limit &&
               std::all_of(stage.items.begin(), stage.items.end(), [&](int i) { return problem.items[static_cast<std::size_t>(i)].runs_on_accelerator; });
    }
    void search(std::uint32_t placed, int accelerators, int cpus, double value) {
        const std::uint32_t all = (1u << problem.items.size()) - 1;
        if (placed == all) best = std::min(best, value);
        if (placed == all || value >= best) return;
        for (std::uint32_t rest = all & ~placed, stage = rest; stage; stage = (stage - 1) & rest) {
            if (!is_downset(placed | stage)) continue;
            if (accelerators > 0) {
                PlacedStage on_accelerator = stage_of(problem, items_of(stage), false);
                if (accelerator_allows(on_accelerator)) search(placed | stage, accelerators - 1, cpus, std::max(value, on_accelerator.load.value));
            }
            if (cpus > 0) search(placed | stage, accelerators, cpus - 1, std::max(value, stage_of(problem, items_of(stage), true).load.value));
        }
    }
};

PlacementProblem random_problem(core::Random& random) {
    PlacementProblem problem;
    int n = 2 + static_cast<int>(random.below(7));
    double density = random.uniform();
    double total_memory = 0;
    for (int i = 0; i < n; ++i) {
        PlacementItem item;
        item.nodes = {i};
        bool is_free = random.below(3) == 0;  // work-free items exercise the reduction
        item.accelerator_time = core::Seconds(is_free ? 0 : 1 + static_cast<double>(random.below(20)));
        item.cpu_time = item.accelerator_time * (is_free ? 0 : 0.5 + 4 * random.uniform());
        item.memory = core::Bytes(static_cast<double>(random.below(4)));
        item.runs_on_accelerator = random.below(12) != 0;
        total_memory += item.memory.value;
        problem.items.push_back(item);
    }
    for (int a = 0; a < n; ++a)
        for (int b = a + 1; b < n; ++b)
            if (random.uniform() < density) problem.precedence.emplace_back(a, b);
    for (int i = 0; i < n; ++i) {
        Transfer transfer{.source = i, .destinations = {}, .time = core::Seconds(static_cast<double>(random.below(6)))};
        bool is_gradient = random.below(4) == 0;  // transfers against the order, as backward nodes make them
        for (auto [a, b] : problem.precedence)
            if ((is_gradient ? b : a) == i && random.below(4) != 0) transfer.destinations.push_back(is_gradient ? a : b);
        if (!transfer.destinations.empty() && transfer.time.value > 0) problem.transfers.push_back(transfer);
    }
    problem.accelerators = static_cast<int>(random.below(4));
    problem.cpus = static_cast<int>(random.below(3));
    if (random.below(2) == 0) problem.memory_limit = core::Bytes(1 + static_cast<double>(random.below(static_cast<std::uint64_t>(total_memory) + 1)));
    return problem;
}

}  // namespace

TEST_CASE("contiguous search equals enumeration on 600 random graphs, feasibility included") {
    core::Random random(20261121);
    int infeasible = 0;
    for (int round = 0; round < 600; ++round) {
        PlacementProblem problem = random_problem(random);
        Oracle oracle(problem);
        if (problem.accelerators + problem.cpus > 0) oracle.search(0, problem.accelerators, problem.cpus, 0);
        PlacementResult result = place_contiguous(problem);
        INFO("round " << round << ", " << problem.items.size() << " items");
        REQUIRE(result.is_feasible == std::isfinite(oracle.best));
        if (!result.is_feasible) {
            ++infeasible;
            CHECK(result.is_proven_infeasible);
            CHECK_FALSE(result.reason.empty());
            continue;
        }
        CHECK(result.is_proven_optimal);
        CHECK(result.objective.value == Approx(oracle.best).epsilon(1e-9).margin(1e-12));
        CHECK(placement_lower_bound(problem).value <= oracle.best * (1 + 1e-9));
        for (const PlacedStage& stage : result.stages)
            if (!stage.is_cpu) CHECK(stage.memory <= problem.memory_limit);
        CHECK(std::count_if(result.stages.begin(), result.stages.end(), [](const PlacedStage& s) { return s.is_cpu; }) <= problem.cpus);
        CHECK(std::count_if(result.stages.begin(), result.stages.end(), [](const PlacedStage& s) { return !s.is_cpu; }) <= problem.accelerators);
        // Contiguous: no edge runs back to an earlier stage.
        std::vector<std::size_t> stage_of_item(problem.items.size());
        for (std::size_t s = 0; s < result.stages.size(); ++s)
            for (int i : result.stages[s].items) stage_of_item[static_cast<std::size_t>(i)] = s;
        for (auto [a, b] : problem.precedence) CHECK(stage_of_item[static_cast<std::size_t>(a)] <= stage_of_item[static_cast<std::size_t>(b)]);
        // Any placement at all is at least as good as a contiguous one.
        PlacementResult anywhere = place_anywhere(problem, {.time_limit = core::Seconds(0.005)});
        REQUIRE(anywhere.is_feasible);
        CHECK(anywhere.objective.value <= result.objective.value * (1 + 1e-9));
        CHECK(anywhere.lower_bound.value <= anywhere.objective.value * (1 + 1e-9));
    }
    CHECK(infeasible > 20);  // the verdict was exercised too
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
    for (Row row : {Row{"LayerGraphs/bert24_inference", 17.789906}, Row{"LayerGraphs/bert24_training", 41.745812}, Row{"LayerGraphs/resnet50_inference", 33.774666},
                    Row{"LayerGraphs/gnmt_inference", 32.910658}, Row{"LayerGraphs/inceptionv3_inference", 51.551864}, Row{"OperatorGraphs/bert_l-3_inference", 27.918568},
                    Row{"OperatorGraphs/bert_l-3_training", 65.303149}, Row{"OperatorGraphs/bert_l-6_inference", 29.579506},
                    Row{"OperatorGraphs/bert_l-12_inference", 147.477984}, Row{"OperatorGraphs/resnet50_inference", 124.348850}}) {
        INFO(row.file);
        PlacementResult result = place_contiguous(load(graphs + "/throughput-inputs/" + row.file + ".json"));
        CHECK(result.is_proven_optimal);
        CHECK(result.objective.value * 1e3 == Approx(row.optimum).margin(6e-7));
    }
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
    for (Row row : {Row{"bert24_inference", 20.084}, Row{"bert24_training", 49.4049}, Row{"gnmt_inference", 46.2085}, Row{"resnet50_inference", 43.9183},
                    Row{"inceptionv3_inference", 102.482}}) {
        INFO(row.file);
        PlacementProblem problem = load(graphs + "/throughput-inputs/LayerGraphs/" + row.file + ".json");
        core::Diagnostics diagnostics;
        auto document = core::load_document(graphs + "/human-experts/" + row.file + "_expert.json", diagnostics);
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
    for (Row row : {Row{"LayerGraphs/bert24_inference", 17.7776}, Row{"LayerGraphs/bert24_training", 39.9432}, Row{"OperatorGraphs/bert_l-3_inference", 27.5741}}) {
        INFO(row.file);
        PlacementProblem problem = load(graphs + "/throughput-inputs/" + row.file + ".json");
        PlacementResult result = place_anywhere(problem, {.time_limit = core::Seconds(20)});
        REQUIRE(result.is_feasible);
        CHECK(result.objective.value * 1e3 <= row.at_most + 5e-5);  // the figure is rounded to four digits
        CHECK(result.lower_bound.value > 0);
        for (const PlacedStage& stage : result.stages)
            if (!stage.is_cpu) CHECK(stage.memory <= problem.memory_limit);
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
