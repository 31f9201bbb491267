// What is said of all partitions of a plan at once, against single ones that are simulated.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/partition/partition_space.h"
#include "planner/search_space.h"
#include "tests/planner/questions.h"

namespace {

using Cuts = std::vector<std::int32_t>;

// Half of them anywhere, half near `from`.
Cuts random_cuts(const Cuts& from, std::int32_t units, std::mt19937& chance) {
    const auto below = [&](std::int32_t end) { return std::int32_t(chance() % std::uint32_t(end)); };
    Cuts cuts = from;
    if (below(2) == 0) {
        std::vector<std::int32_t> all(std::size_t(units) - 1);
        for (std::size_t u = 0; u < all.size(); ++u) all[u] = std::int32_t(u) + 1;
        std::shuffle(all.begin(), all.end(), chance);
        std::copy_n(all.begin(), cuts.size() - 1, cuts.begin() + 1);
        std::sort(cuts.begin(), cuts.end());
    } else {
        for (std::size_t c = 1; c < cuts.size(); ++c) cuts[c] += below(5) - 2;
    }
    for (std::size_t c = 1; c < cuts.size(); ++c)
        if (cuts[c] <= cuts[c - 1] || cuts[c] >= units) return from;
    return cuts;
}

model::ModelGraph graph_named(const std::string& name, int tokens) {
    return name == "mixture" ? mixture_of({.layers = 6, .tokens = tokens, .key_heads = 4})
                             : load_graph(name, tokens);
}

schedule::Plan in_four_stages(const planner::Target& target, int data, const char* order, int micro_batches) {
    schedule::Plan plan = target.base;
    plan.layout.pipeline = 4;
    plan.layout.data = data;
    plan.schedule = order;
    plan.micro_batches = micro_batches;
    return plan;
}

bool holds(const std::vector<planner::PartitionOption>& options, const Cuts& cuts) {
    return std::any_of(options.begin(), options.end(),
                       [&](const planner::PartitionOption& option) { return option.first_units == cuts; });
}

}  // namespace

TEST_CASE("no partition that fits takes less time than is said of all of them, and none is left out") {
    std::mt19937 chance(11);
    // Tied embeddings, whose copies lie on other nodes, of the ends or of units between them too, and untied
    // ones; links between nodes that are slow, and fast ones; replicas that lie alike at every stage, and
    // not.
    for (const auto& [name, tokens, instance, nodes, batch] :
         {std::tuple{"gpt2", 1024, "p3.8xlarge", 4, 64}, std::tuple{"gpt2", 512, "p4d.24xlarge", 2, 32},
          std::tuple{"bert-base", 512, "g4dn.12xlarge", 2, 32},
          std::tuple{"t5-small", 512, "g5.12xlarge", 2, 16}, std::tuple{"mixture", 1024, "p3.8xlarge", 2, 16},
          std::tuple{"gpt2", 512, "p4d.24xlarge", 3, 48}, std::tuple{"mixture", 1024, "p3.8xlarge", 3, 24}}) {
        const model::ModelGraph graph = graph_named(name, tokens);
        const planner::Target target = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        const auto plans = planner::legal_plans(
            graph, target.cluster, {.global_batch = batch, .base = target.base, .most_virtual_stages = 2});
        const std::size_t step = plans.size() / 120 + 1;
        int simulated = 0, close = 0, found = 0;
        for (std::size_t i = chance() % step; i < plans.size(); i += step) {
            schedule::Plan plan = plans[i];
            run_some_again(plan, chance);
            if (plan.recompute == schedule::Recompute::selective && chance() % 2)
                plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                          schedule::RecomputeModule::activation};
            const schedule::Partition* const usual = stages.partition(plan);
            if (!usual || plan.stages() == 1 || bounds.state_never_fits(plan)) continue;
            INFO(name << " of " << tokens << " tokens on " << nodes << " " << instance << ": "
                      << planner::describe(plan));
            planner::StageTable table(graph, bounds);  // of one layout
            const core::Seconds never(1e9);
            const core::Seconds least = planner::PartitionSpace(table, plan).least(never),
                                of_any = bounds.time_of_any_partition(plan);
            planner::PartitionSpace space(table, plan);
            for (int tried = 0; tried < 3; ++tried) {
                plan.partition.first_units =
                    random_cuts(usual->first_units, std::int32_t(graph.units.size()), chance);
                core::Diagnostics diagnostics;
                const auto evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
                REQUIRE(evaluation);
                const double time = evaluation->step_time.value * (1 + 1e-9);
                const core::Seconds bound = space.bound_of(plan.partition.first_units, never);
                CHECK(bound.value <= time);
                CHECK(of_any.value <= time);
                // A part of the bound that reaches a limit is no more than all of it.
                const core::Seconds part = space.bound_of(plan.partition.first_units, bound * 0.5);
                CHECK(part >= bound * 0.5);
                CHECK(part <= bound);
                if (!evaluation->fits) continue;
                CHECK(least.value <= time);
                ++simulated;
                close += least.value > 0.8 * evaluation->step_time.value ? 1 : 0;
                if (!planner::covers_every_partition(plan, graph.units.size())) continue;
                if (const auto below =
                        planner::PartitionSpace(table, plan).below(evaluation->step_time * 1.0001, 40'000)) {
                    CHECK(holds(*below, plan.partition.first_units));
                    ++found;
                }
            }
        }
        CHECK(simulated > 60);
        CHECK(close > 5);  // and it says something
        CHECK(found > 5);
    }
}

// Hosts that dispatch for longer than devices compute take part in a pass of which reductions know nothing.
TEST_CASE("reductions behind a last pass that its host delays are bounded from below") {
    const model::ModelGraph graph = load_graph("gpt2-medium", 256);
    planner::Target target = target_of("p5.48xlarge", 8);
    target.base.gradient_bucket = core::mebibytes(1);
    planner::OrderCollection orders;
    planner::StageCollection stages(graph, target.cluster.instance.device);
    planner::Bounds bounds(target.cluster, orders, stages);
    const auto units = std::int32_t(graph.units.size());
    for (const char* name : {"1f1b", "simple", "zb-h1"})
        for (const schedule::Sharding sharding : {schedule::Sharding::none, schedule::Sharding::optimizer})
            for (const Cuts& cuts : {Cuts{0, 2, units - 4, units - 2}, Cuts{0, 1, units - 2, units - 1},
                                     Cuts{0, units / 4, units / 2, 3 * units / 4}}) {
                schedule::Plan plan = in_four_stages(target, 16, name, 8);
                plan.sharding = sharding;
                planner::StageTable table(graph, bounds);
                INFO(planner::describe(plan)
                     << ", cuts at " << cuts[1] << ", " << cuts[2] << ", " << cuts[3]);
                plan.partition.first_units = cuts;
                core::Diagnostics diagnostics;
                const auto evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
                REQUIRE(evaluation);
                plan.partition = {};
                const auto below =
                    planner::PartitionSpace(table, plan).below(evaluation->step_time * 1.0001, 4'000'000);
                REQUIRE(below);
                CHECK(holds(*below, cuts));
            }
}

TEST_CASE("a mean of paths bounds every division of the units, and its own is the least by it") {
    const model::ModelGraph graph = load_graph("gpt2", 512);
    const planner::Target target = target_of("p3.8xlarge", 2);
    planner::OrderCollection orders;
    planner::StageCollection stages(graph, target.cluster.instance.device);
    planner::Bounds bounds(target.cluster, orders, stages);
    planner::StageTable table(graph, bounds);
    for (const char* name : {"1f1b", "simple", "zb-h1", "zb-2p"}) {
        schedule::Plan plan = in_four_stages(target, 2, name, 16);
        const auto any = bounds.any_partition(plan);
        REQUIRE(any.has_order);
        const sim::ReplayOrder* const replayed = bounds.whole_order(plan);
        REQUIRE(replayed != nullptr);
        const schedule::Schedule* order = bounds.timed_order(plan);
        REQUIRE(order != nullptr);
        const auto units = std::int32_t(graph.units.size());
        std::vector<std::vector<planner::PathBound::Run>> runs(4);
        std::vector<planner::StageTable::Row*> rows;
        const bool splits = planner::splits_backward(*order);
        for (int s = 0; s < 4; ++s) {
            planner::StageTable::Row& row = table.row(plan, *order, splits, s);
            for (std::int32_t i = s; i < units; ++i)
                for (std::int32_t j = i + 1; j <= units; ++j)
                    if ((i == 0) == (s == 0) && (j == units) == (s == 3))
                        runs[std::size_t(s)].push_back(
                            {i, j, &table.of(row, plan, *order, splits, s, std::size_t(i), std::size_t(j))});
        }
        const auto passes = [&](int stage, std::int32_t begin, std::int32_t end) {
            for (const planner::PathBound::Run& run : runs[std::size_t(stage)])
                if (run.begin == begin && run.end == end) return run.passes;
            return static_cast<const planner::Bounds::StagePasses*>(nullptr);
        };
        const auto makespan = [&](const Cuts& cuts, sim::ScheduleCosts& costs, std::vector<double>& ends) {
            costs = any.costs;
            costs.stages.clear();
            for (int s = 0; s < 4; ++s) {
                const auto* of = passes(s, cuts[std::size_t(s)], s < 3 ? cuts[std::size_t(s) + 1] : units);
                costs.stages.insert(costs.stages.end(), of->replayed.begin(), of->replayed.end());
            }
            return replayed->replay(costs, ends).makespan.value;
        };
        planner::PathBound mean(runs, graph.units.size());
        Cuts cuts = {0, 3, 6, 9};
        double greatest = 0;
        for (int path = 0; path < 12; ++path) {
            sim::ScheduleCosts costs;
            std::vector<double> ends;
            const double length = makespan(cuts, costs, ends);
            mean.mix(replayed->critical_path(costs, ends), 2.0 / (path + 2));
            // The first is the critical path itself.
            if (path == 0) {
                double own = mean.beside();
                for (int s = 0; s < 4; ++s)
                    own += mean.part(std::size_t(s), *passes(s, cuts[std::size_t(s)],
                                                             s < 3 ? cuts[std::size_t(s) + 1] : units));
                CHECK(own == Approx(length).epsilon(1e-9));
            }
            greatest = std::max(greatest, mean.least());
            cuts = mean.first_units();
        }
        // Every division, walked here.
        double least = 1e9;
        for (std::int32_t a = 1; a < units; ++a)
            for (std::int32_t b = a + 1; b < units; ++b)
                for (std::int32_t c = b + 1; c < units; ++c) {
                    sim::ScheduleCosts costs;
                    std::vector<double> ends;
                    least = std::min(least, makespan({0, a, b, c}, costs, ends));
                }
        INFO(name << ": at least " << greatest << " s, the least of all is " << least << " s");
        CHECK(greatest <= least * (1 + 1e-9));
        CHECK(greatest >= least * 0.9);
    }
}

TEST_CASE("what is said of all partitions comes close to the least of them, where links are slow") {
    const model::ModelGraph graph = load_graph("gpt2-medium", 1024);
    const planner::Target target = target_of("p3.8xlarge", 4);
    const auto units = std::int32_t(graph.units.size());
    planner::OrderCollection orders;
    planner::StageCollection stages(graph, target.cluster.instance.device);
    planner::Bounds bounds(target.cluster, orders, stages);
    for (const char* name : {"1f1b", "zb-h1", "zb-h2", "zb-2p"})
        for (const schedule::Recompute recompute :
             {schedule::Recompute::none, schedule::Recompute::selective}) {
            schedule::Plan plan = in_four_stages(target, 4, name, 16);
            plan.recompute = recompute;
            plan.sharding = schedule::Sharding::gradients;
            planner::StageTable table(graph, bounds);
            planner::PartitionSpace space(table, plan);
            const core::Seconds never(1e9);
            core::Seconds shortest = never;
            Cuts cuts = {0, 0, 0, 0};
            for (cuts[1] = 1; cuts[1] < units; ++cuts[1])
                for (cuts[2] = cuts[1] + 1; cuts[2] < units; ++cuts[2])
                    for (cuts[3] = cuts[2] + 1; cuts[3] < units; ++cuts[3])
                        shortest = std::min(shortest, space.bound_of(cuts, shortest));
            const core::Seconds least = planner::PartitionSpace(table, plan).least(shortest * 1.1);
            INFO(name << ", recompute " << schedule::name_of(recompute) << ": " << least.value << " of "
                      << shortest.value);
            CHECK(least <= shortest * (1 + 1e-9));
            CHECK(least >= shortest * 0.985);
        }
}

TEST_CASE("memory of a rank is bounded from below, with what waits for the gradients of its weights") {
    std::mt19937 chance(5);
    for (const auto& [name, tokens, instance, nodes, batch] :
         {std::tuple{"gpt2-medium", 1024, "p3.8xlarge", 2, 64},
          std::tuple{"t5-small", 512, "g5.12xlarge", 2, 32},
          std::tuple{"mixture", 1024, "p3.8xlarge", 2, 32}}) {
        const model::ModelGraph graph = graph_named(name, tokens);
        const planner::Target target = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        const auto plans = planner::legal_plans(
            graph, target.cluster, {.global_batch = batch, .base = target.base, .most_virtual_stages = 1});
        const std::size_t step = plans.size() / 200 + 1;
        int compared = 0, split = 0, close = 0;
        for (std::size_t i = chance() % step; i < plans.size(); i += step) {
            schedule::Plan plan = plans[i];
            run_some_again(plan, chance);
            if (plan.recompute == schedule::Recompute::selective && chance() % 2)
                plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                          schedule::RecomputeModule::activation};
            const schedule::Partition* const usual = stages.partition(plan);
            const schedule::Schedule* const order = bounds.timed_order(plan);
            if (!usual || !order || order->stages != order->ranks || plan.stages() == 1) continue;
            plan.offload = schedule::Offload::none;
            plan.partition.first_units =
                random_cuts(usual->first_units, std::int32_t(graph.units.size()), chance);
            core::Diagnostics diagnostics;
            const auto evaluation =
                sim::evaluate(graph, target.cluster, plan, diagnostics, {.memory_only = true});
            REQUIRE(evaluation);
            const std::vector<model::OperatorRange> ranges =
                planner::ranges_of(graph, plan.partition.first_units);
            for (const sim::ClassMemory& memory : evaluation->memory) {
                const int rank = memory.pipeline;
                const planner::Bounds::Saved saved =
                    bounds.saved(plan.of_stage(rank), ranges[std::size_t(rank)]);
                double least = 0, without = 0;
                for (const planner::Bounds::Kept& kept : bounds.kept(plan)[std::size_t(rank)]) {
                    least = std::max(
                        least, kept.whole * saved.whole.value + kept.for_weights * saved.for_weights.value);
                    without = std::max(without, kept.whole * saved.whole.value);
                }
                INFO(name << ": " << planner::describe(plan) << ", recompute "
                          << schedule::name_of(plan.recompute) << ", pipeline rank " << rank);
                const schedule::StateFootprint state =
                    schedule::state_footprint(bounds.elements(plan, ranges[std::size_t(rank)]), plan);
                const core::Bytes beside = target.cluster.instance.device.memory - bounds.room(plan, rank) +
                                           state.parameters + state.gradients + state.optimizer;
                CHECK(beside.value + least * bounds.fragmentation() <= memory.peak.value * (1 + 1e-9));
                ++compared;
                if (least > without) {
                    ++split;
                    close += beside.value + least * bounds.fragmentation() > 0.9 * memory.peak.value ? 1 : 0;
                }
            }
        }
        CHECK(compared > 100);
        CHECK(split > 20);
        CHECK(close > 3);
    }
}

TEST_CASE(
    "memory of a partition is bounded from below, whatever others of the plan were asked about before") {
    std::mt19937 chance(29);
    for (const auto& [name, tokens, instance, nodes, batch] :
         {std::tuple{"gpt2", 1024, "p3.8xlarge", 2, 64}, std::tuple{"t5-small", 512, "g5.12xlarge", 2, 32},
          std::tuple{"mixture", 1024, "p3.8xlarge", 2, 32}}) {
        const model::ModelGraph graph = graph_named(name, tokens);
        const planner::Target target = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        const auto plans = planner::legal_plans(
            graph, target.cluster, {.global_batch = batch, .base = target.base, .most_virtual_stages = 2});
        const std::size_t step = plans.size() / 120 + 1;
        int compared = 0, several = 0, away = 0;
        for (std::size_t i = chance() % step; i < plans.size(); i += step) {
            schedule::Plan plan = plans[i];
            run_some_again(plan, chance);
            const schedule::Partition* const usual = stages.partition(plan);
            const schedule::Schedule* const order = bounds.timed_order(plan);
            if (!usual || !order || plan.stages() == 1) continue;
            if (chance() % 4 == 0) {
                plan.offload = schedule::Offload::host;
                plan.activation_loading_horizon = 1 << chance() % 4;
            }
            INFO(name << ": " << planner::describe(plan));
            double whole = 0;
            for (const std::vector<schedule::Action>& actions : order->actions)
                whole += double(actions.size());
            planner::RankMemories known;
            Cuts cuts = usual->first_units;
            for (int tried = 0; tried < 8; ++tried) {
                cuts = random_cuts(cuts, std::int32_t(graph.units.size()), chance);
                const std::vector<model::OperatorRange> ranges = planner::ranges_of(graph, cuts);
                const double passes = known.passes();
                const auto again = bounds.memory_of(plan, ranges, &known),
                           alone = bounds.memory_of(plan, ranges);
                REQUIRE((again && alone));
                CHECK(again->state == alone->state);
                CHECK(again->peak == alone->peak);
                CHECK(again->pipeline_rank == alone->pipeline_rank);
                CHECK(again->excess == alone->excess);
                CHECK(again->beyond == alone->beyond);
                CHECK(again->on_hosts == alone->on_hosts);
                CHECK(known.passes() - passes <= whole);
                const double asked = known.passes();
                bounds.memory_of(plan, ranges, &known);
                CHECK(known.passes() == asked);  // nothing is found out twice
            }
            plan.partition.first_units = cuts;
            core::Diagnostics diagnostics;
            const auto evaluation =
                sim::evaluate(graph, target.cluster, plan, diagnostics, {.memory_only = true});
            REQUIRE(evaluation);
            const auto bound = bounds.memory_of(plan, planner::ranges_of(graph, cuts), &known);
            CHECK(bound->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            ++compared;
            several += plan.virtual_stages > 1 ? 1 : 0;
            away += plan.offload == schedule::Offload::host ? 1 : 0;
        }
        CHECK(compared > 50);
        CHECK(several > 20);
        CHECK(away > 10);
    }
}
