#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <tuple>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "partition/reader/piper.h"
#include "partition/replicated/replicated_check.h"
#include "partition/replicated/replicated_placement.h"
#include "tests/core/sanitizers.h"

using namespace partition;

namespace {

const std::string graphs = SHARED_DIR "/reference/partitioning/graphs/piper/inputs";

// Every chain of stages from the end, every degree and every choice of configurations: sets are bit masks,
// and least[replicas][devices][set] is the least largest time with that set placed on so many devices in so
// many data-parallel replicas.
struct Enumeration {
    const ReplicatedProblem& problem;
    const unsigned all;

    explicit Enumeration(const ReplicatedProblem& p) : problem(p), all((1u << p.nodes.size()) - 1) {}

    bool is_last(unsigned set) const {
        for (auto [from, to, bytes] : problem.edges)
            if ((set >> from & 1) && !(set >> to & 1)) return false;
        return true;
    }

    // Of all choices of configurations that fit, the least time; infinite when none does.
    double time_of(unsigned stage, int data, int tensor, int in_flight) const {
        struct Choice {
            double time, memory;
        };
        std::vector<Choice> sums{{0, 0}};
        for (std::size_t v = 0; v < problem.nodes.size(); ++v) {
            if (!(stage >> v & 1)) continue;
            const auto& configurations = problem.nodes[v].configurations;
            if (!configurations.count(tensor)) return INFINITY;
            std::vector<Choice> next;
            for (const NodeConfiguration& way : configurations.at(tensor)) {
                double cut = 0;
                for (auto [from, to, bytes] : problem.edges) {
                    if (to == v && !(stage >> from & 1))
                        cut += bytes.value +
                               (way.receive_from.count(from) ? way.receive_from.at(from).value : 0);
                    if (from == v && !(stage >> to & 1))
                        cut += bytes.value + (way.send_to.count(to) ? way.send_to.at(to).value : 0);
                }
                const double moved = 2 * cut / data + 4.0 * (data - 1) * way.parameters.value /
                                                          (static_cast<double>(data) * problem.micro_batches);
                const double time = moved / problem.bandwidth.value + way.time_per_sample.value / data;
                const double memory = way.memory_per_sample.value * in_flight + way.memory_fixed.value;
                for (const Choice& so_far : sums)
                    next.push_back({so_far.time + time, so_far.memory + memory});
            }
            sums = std::move(next);
        }
        double least = INFINITY;
        for (const Choice& choice : sums)
            if (choice.memory <= problem.memory_limit.value * (1 + 1e-12))
                least = std::min(least, choice.time);
        return least;
    }

    double best() const {
        std::vector<unsigned> ends;
        for (unsigned set = 0; set <= all; ++set)
            if (is_last(set)) ends.push_back(set);
        const int most = std::min(problem.devices, problem.micro_batches);
        std::vector least(static_cast<std::size_t>(most) + 1,
                          std::vector(static_cast<std::size_t>(problem.devices) + 1,
                                      std::vector<double>(all + 1, INFINITY)));
        least[0][0][0] = 0;
        std::map<std::tuple<unsigned, int, int, int>, double> times;
        for (int replicas = 0; replicas <= most; ++replicas)
            for (int devices = 0; devices <= problem.devices; ++devices)
                for (unsigned placed : ends) {
                    const double so_far =
                        least[static_cast<std::size_t>(replicas)][static_cast<std::size_t>(devices)][placed];
                    if (std::isinf(so_far)) continue;
                    for (unsigned with : ends) {
                        if (with == placed || (with & placed) != placed) continue;
                        for (int tensor = 1; devices + tensor <= problem.devices; ++tensor)
                            for (int data = 1;
                                 devices + data * tensor <= problem.devices && replicas + data <= most;
                                 ++data) {
                                if (problem.micro_batches % data != 0) continue;
                                const int in_flight = (replicas + data + data - 1) / data;
                                const auto [place, is_new] =
                                    times.try_emplace({with & ~placed, data, tensor, in_flight}, 0.0);
                                if (is_new) place->second = time_of(with & ~placed, data, tensor, in_flight);
                                double& to = least[static_cast<std::size_t>(replicas + data)]
                                                  [static_cast<std::size_t>(devices + data * tensor)][with];
                                to = std::min(to, std::max(so_far, place->second));
                            }
                    }
                }
        double result = INFINITY;
        for (const auto& by_devices : least)
            for (const auto& by_set : by_devices) result = std::min(result, by_set[all]);
        return result;
    }
};

}  // namespace

TEST_CASE(
    "replicated stages equal enumeration on 500 random graphs of up to 12 nodes with recomputation choices") {
    core::Random random(7);
    int infeasible = 0;
    std::size_t largest = 0;
    for (int round = 0; round < 500; ++round) {
        ReplicatedProblem problem;
        int n = 2 + static_cast<int>(random.below(11));
        const double density = n > 8 ? 0.3 + 0.7 * random.uniform() : random.uniform();
        for (int v = 0; v < n; ++v) {
            ConfigurableNode node;
            node.id = v;
            for (int tensor : {1, 2}) {
                if (tensor == 2 && random.below(3) == 0) continue;
                double time = (1 + static_cast<double>(random.below(9))) / (tensor == 2 ? 1.7 : 1);
                double memory = static_cast<double>(1 + random.below(5));
                node.configurations[tensor].push_back({"plain",
                                                       core::Seconds(time),
                                                       core::Bytes(static_cast<double>(random.below(4))),
                                                       core::Bytes(memory),
                                                       core::Bytes(1),
                                                       {},
                                                       {}});
                node.configurations[tensor].push_back({"recomputed",
                                                       core::Seconds(time * 1.3),
                                                       core::Bytes(1),
                                                       core::Bytes(memory / 3),
                                                       core::Bytes(1.5),
                                                       {},
                                                       {}});
            }
            problem.nodes.push_back(node);
        }
        for (std::size_t a = 0; a < problem.nodes.size(); ++a)
            for (std::size_t b = a + 1; b < problem.nodes.size(); ++b)
                if (random.uniform() < density)
                    problem.edges.push_back({a, b, core::Bytes(static_cast<double>(random.below(5)))});
        // Every third problem has nodes that cost nothing, some of them on any number of devices.
        std::vector<char> is_free(static_cast<std::size_t>(n), 0);
        for (int v = 0; round % 3 == 0 && v < n; ++v)
            if (random.below(3) == 0) {
                is_free[static_cast<std::size_t>(v)] = 1;
                auto& ways = problem.nodes[static_cast<std::size_t>(v)].configurations;
                ways.clear();
                for (int tensor = 1; tensor <= 1 + static_cast<int>(random.below(4) != 0); ++tensor)
                    ways[tensor].push_back({"free", {}, {}, {}, {}, {}, {}});
            }
        for (ReplicatedProblem::Edge& edge : problem.edges)
            if ((is_free[static_cast<std::size_t>(edge.from)] ||
                 is_free[static_cast<std::size_t>(edge.to)]) &&
                random.below(8) != 0)
                edge.bytes = core::Bytes(0);
        problem.devices = 1 + static_cast<int>(random.below(5));
        problem.micro_batches = 2 + 2 * static_cast<int>(random.below(3));
        problem.bandwidth = core::BytesPerSecond(4);
        problem.memory_limit =
            core::Bytes(4 + static_cast<double>(random.below(static_cast<std::uint64_t>(8 * n))));
        const double want = Enumeration(problem).best();
        ReplicatedResult result = place_replicated(problem);
        largest = std::max(largest, problem.nodes.size());
        INFO("round " << round);
        REQUIRE(result.is_feasible == std::isfinite(want));
        if (!result.is_feasible) {
            CHECK(result.is_proven_infeasible);
            ++infeasible;
            continue;
        }
        CHECK(result.objective.value == Approx(want).epsilon(3e-9));
        CHECK(result.is_proven_optimal);
        std::vector<int> stage_of(problem.nodes.size(), -1);
        double largest_time = 0;
        for (std::size_t s = 0; s < result.stages.size(); ++s) {
            largest_time = std::max(largest_time, result.stages[s].time.value);
            for (int v : result.stages[s].nodes) {
                CHECK(stage_of[static_cast<std::size_t>(v)] == -1);
                stage_of[static_cast<std::size_t>(v)] = static_cast<int>(s);
            }
        }
        CHECK(largest_time == Approx(want).epsilon(3e-9));
        const ReplicatedResult judged = judge_replicated(problem, result.stages);
        CHECK(judged.is_feasible);
        CHECK(judged.objective == result.objective);
        CHECK(judged.lower_bound <= result.objective);
        for (int stage : stage_of) CHECK(stage >= 0);
        for (auto [from, to, bytes] : problem.edges)
            CHECK(stage_of[static_cast<std::size_t>(from)] <= stage_of[static_cast<std::size_t>(to)]);
    }
    CHECK(infeasible > 20);
    CHECK(largest == 12);
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
    for (Row row : {Row{"bert32a100", 8, 8, 1920, 0.16585575}, Row{"bert32a100", 64, 8, 1920, 0.0202005503},
                    Row{"bert32a100", 64, 1, 1920, 0}, Row{"bert32a100", 512, 8, 1920, 0.00256112785},
                    Row{"resnet", 16, 4, 7680, 35.333}}) {
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
        // resnet is printed with three decimals (runResnet of Piper's algo.cpp): 35.333 stands for up
        // to 35.3335. Its algorithm, followed with greedy knapsacks and all digits, gives 35.3334375090897
        // here, and the other rows' published digits.
        CHECK(result.objective.value <= row.published * (1 + (row.published > 1 ? 1.5e-5 : 1e-9)));
        if (row.published > 1) CHECK(result.objective.value == Approx(35.3334375090897).epsilon(1e-12));
        CHECK(result.is_proven_optimal);
        int devices = 0;
        for (const ReplicatedStage& stage : result.stages) {
            devices += stage.data * stage.tensor;
            CHECK(stage.memory <= problem->memory_limit);
        }
        CHECK(devices <= row.devices);
    }
}

TEST_CASE("resnet on 64 and 128 devices is placed with proof where memory forces recomputation") {
    if (!std::filesystem::exists(graphs)) {
        WARN("skipped: " << graphs << " is absent");
        return;
    }
    core::Diagnostics diagnostics;
    const auto document = core::load_document(graphs + "/resnet.json", diagnostics);
    REQUIRE(document);
    const auto problem = read_piper(*document, diagnostics);
    REQUIRE(problem);
    // More devices and more memory never cost time: each row bounds the next. One of these took minutes while
    // every stage's configurations were chosen exactly.
    double before = INFINITY;
    for (auto [devices, gibibytes] : {std::pair(64, 8.0), std::pair(128, 2.0), std::pair(128, 8.0)}) {
        if (is_sanitized && devices > 64) continue;
        INFO(devices << " devices of " << gibibytes << " GiB");
        ReplicatedProblem sized = *problem;
        sized.devices = devices;
        sized.memory_limit = core::gibibytes(gibibytes);
        sized.bandwidth = core::BytesPerSecond(25.0 * (1 << 30));
        const ReplicatedResult result = place_replicated(sized);
        CHECK(result.is_proven_optimal);
        CHECK(result.objective.value < before);
        CHECK(judge_replicated(sized, result.stages).objective == result.objective);
        before = result.objective.value;
    }
}

TEST_CASE("replicated stages that are no placement are refused with the reason") {
    ReplicatedProblem problem;
    for (int v = 0; v < 2; ++v) {
        ConfigurableNode node;
        node.id = v;
        node.configurations[1].push_back(
            {"plain", core::Seconds(2), core::Bytes(0), core::Bytes(1), core::Bytes(1), {}, {}});
        problem.nodes.push_back(node);
    }
    problem.edges.push_back({0, 1, core::Bytes(3)});
    problem.devices = 2;
    problem.memory_limit = core::Bytes(3);
    problem.bandwidth = core::BytesPerSecond(2);
    problem.micro_batches = 4;
    const auto stage = [](std::size_t node, int data) {
        return ReplicatedStage{
            .nodes = {node}, .data = data, .tensor = 1, .configurations = {0}, .time = {}, .memory = {}};
    };
    const auto reason = [&](std::vector<ReplicatedStage> stages) {
        return judge_replicated(problem, stages).reason;
    };
    // One replica each: 2 s of compute and 2 * 3 bytes at 2 bytes a second; the first keeps two samples: 2 *
    // 1 + 1 bytes.
    const ReplicatedResult good = judge_replicated(problem, {stage(0, 1), stage(1, 1)});
    CHECK(good.is_feasible);
    CHECK(good.objective.value == 5);
    CHECK(good.stages[0].memory.value == 3);
    CHECK(good.lower_bound.value == 2);
    CHECK(reason({stage(1, 1), stage(0, 1)}).find("feeds") != std::string::npos);
    CHECK(reason({stage(0, 2), stage(1, 1)}).find("take 3 devices") != std::string::npos);
    CHECK(reason({stage(0, 1)}).find("in no stage") != std::string::npos);
    CHECK(reason({stage(0, 3), stage(1, 1)}).find("do not divide the 4") != std::string::npos);
    problem.memory_limit = core::Bytes(2);
    CHECK(reason({stage(0, 1), stage(1, 1)}).find("stage 0 of the partition needs 3 B") != std::string::npos);
}
