#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <functional>

#include "core/document.h"
#include "core/random.h"
#include "planner/reader/piper.h"
#include "planner/replicated_placement.h"

using namespace planner;

namespace {

const std::string graphs = SHARED_DIR "/reference/partitioning/graphs/piper/inputs";

// Every chain of stages from the end, every degree and every choice of configurations.
double enumerate(const ReplicatedProblem& problem) {
    const int n = static_cast<int>(problem.nodes.size());
    double best = std::numeric_limits<double>::infinity();
    std::function<void(unsigned, int, int, double)> place = [&](unsigned placed, int devices, int replicas, double value) {
        if (placed == (1u << n) - 1) best = std::min(best, value);
        for (unsigned stage = 1; stage < 1u << n; ++stage) {
            if (stage & placed) continue;
            bool is_last = true;
            for (auto [from, to, bytes] : problem.edges)
                if ((stage >> from & 1) && !((stage | placed) >> to & 1)) is_last = false;
            if (!is_last) continue;
            std::vector<int> nodes;
            for (int v = 0; v < n; ++v)
                if (stage >> v & 1) nodes.push_back(v);
            for (int tensor = 1; tensor <= devices; ++tensor)
                for (int data = 1; data * tensor <= devices && replicas + data <= problem.micro_batches; ++data) {
                    if (problem.micro_batches % data != 0) continue;
                    bool is_supported = true;
                    for (int v : nodes) is_supported = is_supported && problem.nodes[static_cast<std::size_t>(v)].configurations.count(tensor);
                    if (!is_supported) continue;
                    std::vector<int> chosen(nodes.size(), 0);
                    while (true) {
                        ReplicatedStage candidate = evaluate_stage(problem, nodes, data, tensor, chosen, replicas);
                        if (candidate.memory <= problem.memory_limit) place(placed | stage, devices - data * tensor, replicas + data, std::max(value, candidate.time.value));
                        std::size_t i = 0;
                        while (i < chosen.size() && ++chosen[i] == static_cast<int>(problem.nodes[static_cast<std::size_t>(nodes[i])].configurations.at(tensor).size())) chosen[i++] = 0;
                        if (i == chosen.size()) break;
                    }
                }
        }
    };
    place(0, problem.devices, 0, 0);
    return best;
}

}  // namespace

TEST_CASE("replicated stages equal enumeration on 60 random graphs with recomputation choices") {
    core::Random random(7);
    int infeasible = 0;
    for (int round = 0; round < 60; ++round) {
        ReplicatedProblem problem;
        int n = 2 + static_cast<int>(random.below(3));
        for (int v = 0; v < n; ++v) {
            ConfigurableNode node;
            node.id = v;
            for (int tensor : {1, 2}) {
                if (tensor == 2 && random.below(3) == 0) continue;
                double time = (1 + static_cast<double>(random.below(9))) / (tensor == 2 ? 1.7 : 1);
                double memory = static_cast<double>(1 + random.below(5));
                node.configurations[tensor].push_back({"plain", core::Seconds(time), core::Bytes(static_cast<double>(random.below(4))), core::Bytes(memory), core::Bytes(1), {}, {}});
                node.configurations[tensor].push_back({"recomputed", core::Seconds(time * 1.3), core::Bytes(1), core::Bytes(memory / 3), core::Bytes(1.5), {}, {}});
            }
            problem.nodes.push_back(node);
        }
        for (int a = 0; a < n; ++a)
            for (int b = a + 1; b < n; ++b)
                if (random.below(2)) problem.edges.push_back({a, b, core::Bytes(static_cast<double>(random.below(5)))});
        problem.devices = 1 + static_cast<int>(random.below(5));
        problem.micro_batches = 2 + 2 * static_cast<int>(random.below(3));
        problem.bandwidth = core::BytesPerSecond(4);
        problem.memory_limit = core::Bytes(4 + static_cast<double>(random.below(24)));
        double want = enumerate(problem);
        ReplicatedResult result = place_replicated(problem);
        INFO("round " << round);
        REQUIRE(result.is_feasible == std::isfinite(want));
        if (!result.is_feasible) {
            CHECK(result.is_proven_infeasible);
            ++infeasible;
            continue;
        }
        CHECK(result.objective.value == Approx(want).epsilon(3e-9));
        CHECK(result.is_proven_optimal);
    }
    CHECK(infeasible > 3);
}

TEST_CASE("Piper's instances are never worse than its published values, and infeasible where it is") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    struct Row {
        const char* file;
        int devices;
        double gibibytes;
        int micro_batches;
        double published;  // seconds; 0 = infeasible. reference/partitioning/partitioning.md
    };
    for (Row row : {Row{"bert32a100", 8, 8, 1920, 0.16585575}, Row{"bert32a100", 64, 8, 1920, 0.0202005503}, Row{"bert32a100", 64, 1, 1920, 0},
                    Row{"bert32a100", 512, 8, 1920, 0.00256112785}, Row{"resnet", 16, 4, 7680, 35.333}}) {
        INFO(row.file << " on " << row.devices);
        core::Diagnostics diagnostics;
        auto document = core::load_document(graphs + "/" + row.file + ".json", diagnostics);
        REQUIRE(document);
        auto problem = read_piper(*document, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(problem);
        problem->devices = row.devices;
        problem->memory_limit = core::gibibytes(row.gibibytes);
        problem->micro_batches = row.micro_batches;
        problem->bandwidth = core::BytesPerSecond(25.0 * (1 << 30));
        ReplicatedResult result = place_replicated(*problem);
        CHECK(result.is_feasible == (row.published > 0));
        if (!result.is_feasible) {
            CHECK(result.is_proven_infeasible);
            continue;
        }
        // resnet is published with three decimals: 35.333 stands for up to 35.3335.
        CHECK(result.objective.value <= row.published * (1 + (row.published > 1 ? 1.5e-5 : 1e-9)));
        CHECK(result.is_proven_optimal);
        int devices = 0;
        for (const ReplicatedStage& stage : result.stages) {
            devices += stage.data * stage.tensor;
            CHECK(stage.memory <= problem->memory_limit);
        }
        CHECK(devices <= row.devices);
    }
}
