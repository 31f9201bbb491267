#include <unistd.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cluster/profile/load.h"
#include "cluster/profile/write.h"
#include "core/diagnostics.h"
#include "core/random.h"
#include "model/load.h"
#include "model/operators/signature.h"
#include "partition/model_placement.h"
#include "planner/search_space.h"
#include "sim/cost/compute.h"

using namespace partition;

TEST_CASE(
    "a partition balances the times that a profile measured: its largest load is that of enumeration over "
    "the file's own sums") {
    core::Diagnostics diagnostics;
    model::LoadOptions small;
    small.sequence_length = 64;
    const auto graph = model::load_model(std::string("gpt2"), small, diagnostics);
    auto instance = cluster::load_instance("local-cpu", diagnostics);
    REQUIRE(graph);
    REQUIRE(instance);
    schedule::Plan plan = planner::default_plan(instance->device);
    for (auto attention : {plan.attention, model::AttentionImplementation::fused_softmax,
                           model::AttentionImplementation::unfused}) {
        plan.attention = attention;
        core::Diagnostics ignored;
        if (sim::ComputeCost::make(*graph, instance->device, plan, ignored)) break;
    }
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("measured_" + std::to_string(getpid()) + ".toml");
    core::Random random(5);
    std::set<std::vector<std::int32_t>> cuts_found;
    for (int round = 0; round < 4; ++round) {
        // A measured file as `smexec profile --model` writes it: whole milliseconds for every signature, so
        // that sums are exact to the eye.
        instance->device.measured_operators.clear();
        std::map<std::string, double> milliseconds;
        for (std::size_t i = 0; i < graph->operators.size(); ++i) {
            const std::string signature = model::signature(
                *graph, model::OperatorId(static_cast<std::int32_t>(i)), plan.cost_context());
            if (milliseconds.count(signature)) continue;
            // Slow embeddings in one round, a slow head in the next: layers are all alike, only the ends move
            // the cuts.
            const auto& slow = round % 2 ? graph->units.back().operators : graph->units.front().operators;
            const double scale =
                static_cast<std::int32_t>(i) >= slow.begin && static_cast<std::int32_t>(i) < slow.end ? 100
                                                                                                      : 1;
            const auto drawn = [&] { return scale * (10 + static_cast<double>(random.below(90))); };
            const double forward = drawn(), input = drawn(), weight = drawn();
            milliseconds[signature] = forward + input + weight;
            instance->device.measured_operators.push_back({signature, core::milliseconds(forward),
                                                           core::milliseconds(input),
                                                           core::milliseconds(weight)});
        }
        std::ofstream(path) << cluster::instance_to_toml(*instance);
        const auto measured = cluster::load_instance(path.string(), diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(measured);
        cluster::Cluster cluster;
        cluster.instance = *measured;
        cluster.nodes = 1;
        const int devices = 3;
        auto placement = model_placement(*graph, cluster, plan, devices, Granularity::unit,
                                         TiedParameters::copied, diagnostics);
        REQUIRE(placement);
        placement->problem.memory_limit = core::gibibytes(1000);
        const PlacementProblem& problem = placement->problem;
        const PlacementResult result = place_contiguous(problem);
        CHECK(result.is_proven_optimal);

        // The units of a GPT are a chain; between two of them runs one tensor of 64 x 768 elements, forward
        // and its gradient back.
        const std::size_t units = graph->units.size();
        REQUIRE(problem.items.size() == units);
        std::vector<double> sum(units + 1, 0);
        for (std::size_t u = 0; u < units; ++u) {
            sum[u + 1] = sum[u];
            for (std::int32_t i = graph->units[u].operators.begin; i < graph->units[u].operators.end; ++i)
                if (graph->operators[static_cast<std::size_t>(i)].kind != model::OperatorKind::input)
                    sum[u + 1] += 1e-3 * milliseconds.at(model::signature(*graph, model::OperatorId(i),
                                                                          plan.cost_context()));
        }
        const auto moved = [&](std::size_t cut) {
            double time = 0;
            for (const Transfer& transfer : problem.transfers)
                if (static_cast<std::size_t>(transfer.source) < cut &&
                    static_cast<std::size_t>(transfer.destinations.back()) >= cut)
                    time += transfer.time.value;
            return time;
        };
        double best = sum[units];
        for (std::size_t a = 1; a < units; ++a) {
            best = std::min(best, std::max(sum[a], sum[units] - sum[a]) + moved(a));
            for (std::size_t b = a + 1; b < units; ++b)
                best = std::min(best, std::max({sum[a] + moved(a), sum[b] - sum[a] + moved(a) + moved(b),
                                                sum[units] - sum[b] + moved(b)}));
        }
        INFO("round " << round);
        CHECK(result.objective.value == Approx(best).epsilon(1e-9));
        cuts_found.insert(first_units_of(*graph, *placement, result.stages));
    }
    CHECK(cuts_found.size() > 1);  // other measurements, another partition
    std::filesystem::remove(path);
}
