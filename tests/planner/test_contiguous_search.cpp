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

// The oracle: every chain of downsets by recursion over every subset, from the last stage to the first, loads by the definition, no bound and no reduction.
struct Oracle {
    const PlacementProblem& problem;
    const std::vector<DeviceClass> classes;
    std::vector<std::uint32_t> after;
    double best = std::numeric_limits<double>::infinity();

    explicit Oracle(const PlacementProblem& p) : problem(p), classes(device_classes(p)), after(p.items.size(), 0) {
        for (auto [a, b] : problem.precedence) after[static_cast<std::size_t>(a)] |= 1u << b;
        std::vector<int> left;
        for (const DeviceClass& c : classes) left.push_back(c.count);
        search(0, left, 0, 0);
    }
    bool is_upset(std::uint32_t set) const {
        for (std::size_t i = 0; i < after.size(); ++i)
            if ((set >> i & 1) && (after[i] & ~set)) return false;
        return true;
    }
    static std::vector<int> items_of(std::uint32_t set) {
        std::vector<int> items;
        for (int i = 0; i < 32; ++i)
            if (set >> i & 1) items.push_back(i);
        return items;
    }
    // `placed` is held by the stages behind; with this one there are stages_behind + 1 from here to the end, as many micro-batches are in flight.
    void search(std::uint32_t placed, std::vector<int>& left, int stages_behind, double value) {
        const std::uint32_t all = (1u << problem.items.size()) - 1;
        if (placed == all) best = std::min(best, value);
        if (placed == all || value >= best) return;
        for (std::uint32_t rest = all & ~placed, stage = rest; stage; stage = (stage - 1) & rest) {
            if (!is_upset(placed | stage)) continue;
            for (std::size_t c = 0; c < classes.size(); ++c) {
                if (left[c] == 0) continue;
                PlacedStage placed_stage = stage_of(problem, items_of(stage), static_cast<int>(c), std::min(problem.micro_batches, stages_behind + 1));
                if (!classes[c].is_cpu && (placed_stage.memory > classes[c].memory_limit ||
                                           !std::all_of(placed_stage.items.begin(), placed_stage.items.end(),
                                                        [&](int i) { return problem.items[static_cast<std::size_t>(i)].runs_on_accelerator; })))
                    continue;
                --left[c];
                search(placed | stage, left, stages_behind + 1, std::max(value, placed_stage.load.value));
                ++left[c];
            }
        }
    }
};

PlacementProblem random_problem(core::Random& random, int most_items = 8) {
    PlacementProblem problem;
    int n = 2 + static_cast<int>(random.below(static_cast<std::uint64_t>(most_items - 1)));
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

// Up to three classes of devices with speeds, links and memories of their own; activations of several micro-batches in flight.
void make_uneven(PlacementProblem& problem, core::Random& random) {
    double kept = 0;
    for (PlacementItem& item : problem.items) {
        item.activations = core::Bytes(static_cast<double>(random.below(3)));
        kept += item.memory.value + item.activations.value;
    }
    problem.micro_batches = 1 + static_cast<int>(random.below(4));
    const std::size_t classes = 1 + random.below(3);
    for (std::size_t c = 0; c < classes; ++c) {
        DeviceClass device{.name = std::string(1, static_cast<char>('a' + c)), .count = static_cast<int>(random.below(3)), .is_cpu = c == 2};
        device.slowness = 1 + 0.5 * static_cast<double>(random.below(4));
        device.transfer_slowness = 1 + static_cast<double>(random.below(2));
        if (random.below(3)) device.memory_limit = core::Bytes(1 + kept * random.uniform() * 1.5);
        problem.devices.push_back(device);
    }
}

void check_against_enumeration(const PlacementProblem& problem, int& infeasible) {
    const Oracle oracle(problem);
    PlacementResult result = place_contiguous(problem);
    REQUIRE(result.is_feasible == std::isfinite(oracle.best));
    if (!result.is_feasible) {
        ++infeasible;
        CHECK(result.is_proven_infeasible);
        CHECK_FALSE(result.reason.empty());
        return;
    }
    CHECK(result.is_proven_optimal);
    CHECK(result.objective.value == Approx(oracle.best).epsilon(1e-9).margin(1e-12));
    CHECK(placement_lower_bound(problem).value <= oracle.best * (1 + 1e-9));
    std::vector<int> used(oracle.classes.size(), 0);
    for (const PlacedStage& stage : result.stages) {
        ++used[static_cast<std::size_t>(stage.device_class)];
        if (!stage.is_cpu) CHECK(stage.memory <= oracle.classes[static_cast<std::size_t>(stage.device_class)].memory_limit);
    }
    for (std::size_t c = 0; c < used.size(); ++c) CHECK(used[c] <= oracle.classes[c].count);
    // Contiguous: no edge runs back to an earlier stage.
    std::vector<std::size_t> stage_of_item(problem.items.size());
    for (std::size_t s = 0; s < result.stages.size(); ++s)
        for (int i : result.stages[s].items) stage_of_item[static_cast<std::size_t>(i)] = s;
    for (auto [a, b] : problem.precedence) CHECK(stage_of_item[static_cast<std::size_t>(a)] <= stage_of_item[static_cast<std::size_t>(b)]);
    // Any placement at all is at least as good as a contiguous one.
    if (problem.micro_batches > 1) return;
    PlacementResult anywhere = place_anywhere(problem, {.time_limit = core::Seconds(0.003)});
    REQUIRE(anywhere.is_feasible);
    CHECK(anywhere.objective.value <= result.objective.value * (1 + 1e-9));
    CHECK(anywhere.lower_bound.value <= anywhere.objective.value * (1 + 1e-9));
}

}  // namespace

TEST_CASE("contiguous search equals enumeration on 500 random graphs, feasibility included") {
    core::Random random(20261121);
    int infeasible = 0;
    for (int round = 0; round < 500; ++round) {
        PlacementProblem problem = random_problem(random, round % 50 == 0 ? 11 : 7);
        INFO("round " << round << ", " << problem.items.size() << " items");
        check_against_enumeration(problem, infeasible);
    }
    CHECK(infeasible > 20);  // the verdict was exercised too
}

TEST_CASE("so it does on 500 with unlike devices and micro-batches in flight") {
    core::Random random(14);
    int infeasible = 0;
    for (int round = 0; round < 500; ++round) {
        PlacementProblem problem = random_problem(random, round % 50 == 0 ? 9 : 7);
        make_uneven(problem, random);
        INFO("round " << round << ", " << problem.items.size() << " items");
        check_against_enumeration(problem, infeasible);
    }
    CHECK(infeasible > 50);
}

TEST_CASE("a placement does not depend on the number of threads") {
    // Wide enough for threads to be started: 5 chains of 8 items between a fork and a join, with loads that differ.
    PlacementProblem problem;
    core::Random random(5);
    for (int i = 0; i < 42; ++i) {
        PlacementItem item;
        item.nodes = {i};
        item.accelerator_time = item.cpu_time = core::Seconds(1 + static_cast<double>(random.below(1000)) / 7);
        item.memory = core::Bytes(1);
        problem.items.push_back(item);
    }
    for (int chain = 0; chain < 5; ++chain)
        for (int i = 0; i <= 8; ++i) {
            const int before = i == 0 ? 0 : 1 + chain * 8 + i - 1, after = i == 8 ? 41 : 1 + chain * 8 + i;
            problem.precedence.emplace_back(before, after);
            problem.transfers.push_back({before, {after}, core::Seconds(static_cast<double>(random.below(20)))});
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
