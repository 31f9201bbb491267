// Heads exchanged, or keys in a ring, instead of keys gathered as an axis of the search: there wherever heads
// divide, or where a ring is asked for, bounded from below, and taken where it is faster.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

using schedule::ContextCommunication;

namespace {

// Of eight heads on samples of 8,192 tokens, so that degrees of context parallelism are searched.
planner::SpaceRequest long_samples(const planner::Target& target, int batch) {
    return {.global_batch = batch, .base = target.base, .most_virtual_stages = 1};
}

}  // namespace

TEST_CASE("plans that divide sequences come with keys gathered, and with heads exchanged where they divide") {
    const model::ModelGraph graph = small_llama();  // eight heads
    const planner::Target target = target_of("p4d.24xlarge", 1);
    const std::vector<schedule::Plan> plans =
        planner::legal_plans(graph, target.cluster, long_samples(target, 4));
    std::size_t gathered = 0, exchanged = 0;
    for (const schedule::Plan& plan : plans) {
        core::Diagnostics diagnostics;
        schedule::check_plan(plan, graph, 8, nullptr, diagnostics);
        INFO(planner::describe(plan));
        CHECK_FALSE(diagnostics.has_errors());
        const bool divides = 8 / plan.layout.tensor % plan.layout.context == 0;
        if (plan.context_communication == ContextCommunication::all_to_all) {
            CHECK(plan.layout.context > 1);
            CHECK(divides);
            CHECK(plan.recompute != schedule::Recompute::selective);
            ++exchanged;
        } else if (plan.layout.context > 1 && divides) {
            ++gathered;
        }
    }
    CHECK(exchanged > 0);
    CHECK(exchanged == gathered);  // fused attention: nothing to recompute by itself
    planner::SpaceRequest one = long_samples(target, 4);
    one.limits.context_communication = {ContextCommunication::all_gather};
    CHECK(planner::legal_plans(graph, target.cluster, one).size() == plans.size() - exchanged);
}

TEST_CASE("heads are exchanged unasked where that moves at most twice what gathered keys do") {
    // Of 64 heads eight have keys: two ranks would exchange (2 x 64 + 2 x 8) / 2 heads of their tokens twice,
    // and gather 2 x 8 of all tokens three times: 144 against 48. With eight ranks it is 36.
    const model::ModelGraph graph = load_graph("llama-2-70b", 16384);
    const planner::Target target = target_of("p4d.24xlarge", 1);
    planner::SpaceRequest request = long_samples(target, 4);
    std::set<int> degrees;
    for (const schedule::Plan& plan : planner::legal_plans(graph, target.cluster, request))
        if (plan.context_communication == ContextCommunication::all_to_all)
            degrees.insert(plan.layout.context);
    CHECK(degrees == std::set<int>{4, 8});
    request.limits.context_communication = {ContextCommunication::all_to_all};
    degrees.clear();
    for (const schedule::Plan& plan : planner::legal_plans(graph, target.cluster, request))
        if (plan.layout.context > 1) degrees.insert(plan.layout.context);
    CHECK(degrees == std::set<int>{2, 4, 8});
}

TEST_CASE("no plan that exchanges heads or passes keys on needs less memory or time than its bounds say") {
    const ContextCommunication communication =
        GENERATE(ContextCommunication::all_to_all, ContextCommunication::ring);
    const bool exchanges = communication == ContextCommunication::all_to_all;
    for (const auto& [instance, nodes, batch] :
         {std::tuple{"p4d.24xlarge", 1, 4}, std::tuple{"p4d.24xlarge", 2, 8},
          std::tuple{exchanges ? "p3.16xlarge" : "p5.48xlarge", 2, 4}}) {  // no ring without fused attention
        const model::ModelGraph graph = small_llama();
        const planner::Target target = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        planner::SpaceRequest request = long_samples(target, batch);
        request.limits.context_communication = {communication};
        const auto plans = planner::legal_plans(graph, target.cluster, request);
        for (const schedule::Plan& plan : plans) bounds.time(plan);
        int seen = 0, simulated = 0;
        for (schedule::Plan plan : plans) {
            if (plan.layout.context == 1 || seen++ % 11 != 0) continue;
            const auto memory = bounds.memory(plan);
            REQUIRE(memory);
            const core::Seconds time = bounds.time_of_order(plan), work = bounds.time_of_work(plan);
            const schedule::Partition* const partition = stages.partition(plan);
            REQUIRE(partition);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
            REQUIRE(evaluation);
            INFO(planner::describe(plan));
            CHECK(work <= evaluation->step_time * (1 + 1e-9));
            CHECK(time <= evaluation->step_time * (1 + 1e-9));
            CHECK(memory->peak <= evaluation->peak_memory * (1 + 1e-9));
            ++simulated;
        }
        CHECK(simulated >= 10);
    }
}

TEST_CASE("a search finds the same plan among exchanged heads as a look at every plan does") {
    const model::ModelGraph graph = small_llama();
    const std::vector<planner::Target> targets = {target_of("p3.16xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 2;
    request.limits.schedules = {"1f1b"};
    request.limits.pipeline = {1};
    request.refines_first = false;
    core::Diagnostics diagnostics;
    const planner::SearchResult found = planner::search_plans(graph, targets, request, diagnostics);
    request.uses_bounds = false;
    const planner::SearchResult every = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE_FALSE(found.plans.empty());
    REQUIRE_FALSE(every.plans.empty());
    CHECK(found.plans.front().value == every.plans.front().value);
    CHECK(planner::describe(found.plans.front().plan) == planner::describe(every.plans.front().plan));
    CHECK(found.account.is_proven_optimal);
}

TEST_CASE("with as many heads of keys as of queries exchanged heads move less than gathered keys") {
    // Of a layer a rank gets 2 h of (c - 1) / c of the tokens as keys and values, or 4 h of (c - 1) / c of
    // its own c-th of them as heads: with eight ranks a quarter.
    const model::ModelGraph graph = load_graph("llama-2-7b", 32768);
    const planner::Target target = target_of("p4d.24xlarge", 1);
    schedule::Plan plan = target.base;
    plan.layout.data = plan.layout.context = 8;
    plan.micro_batches = 2;
    plan.sharding = schedule::Sharding::parameters;
    plan.recompute = schedule::Recompute::full;
    core::Diagnostics diagnostics;
    const auto gathered = sim::evaluate(graph, target.cluster, plan, diagnostics);
    plan.context_communication = ContextCommunication::all_to_all;
    const auto exchanged = sim::evaluate(graph, target.cluster, plan, diagnostics);
    REQUIRE(gathered);
    REQUIRE(exchanged);
    CHECK(exchanged->step_time < gathered->step_time);
    CHECK(exchanged->breakdown.tensor_parallel < gathered->breakdown.tensor_parallel * 0.7);
    // As much is computed.
    CHECK(exchanged->breakdown.compute.value == Approx(gathered->breakdown.compute.value).epsilon(0.03));
}

TEST_CASE("in a ring between nodes keys pass beside the attention") {
    // Of 131,072 tokens four ranks have 32,768 each, a rank of every tensor-parallel group on another node. A
    // piece is eight heads of 128 by half of 32,768 x 32,768 scores, two products: 2.2 TFLOP forward, some
    // 4 ms at 500 TFLOP/s. The head of keys and values of 32,768 tokens is 16 MiB, 0.3 ms through a device's
    // own 50 GB/s.
    const model::ModelGraph graph = load_graph("llama-3-70b", 131072);
    const planner::Target target = target_of("p5.48xlarge", 4);
    schedule::Plan plan = target.base;
    plan.layout.tensor = 8;
    plan.layout.data = plan.layout.context = 4;
    plan.sequence_parallel = true;
    plan.sharding = schedule::Sharding::optimizer;
    plan.recompute = schedule::Recompute::full;
    core::Diagnostics diagnostics;
    const auto gathered = sim::evaluate(graph, target.cluster, plan, diagnostics);
    plan.context_communication = ContextCommunication::ring;
    const auto ring = sim::evaluate(graph, target.cluster, plan, diagnostics);
    REQUIRE(gathered);
    REQUIRE(ring);
    CHECK(ring->step_time < gathered->step_time);
    // Beside what one node without context parallelism takes: some scatters wait for reductions of gradients.
    plan.layout.data = plan.layout.context = 1;
    core::Diagnostics too_large;
    const model::ModelGraph part = load_graph("llama-3-70b", 131072 / 4);
    const auto alone = sim::evaluate(part, target_of("p5.48xlarge", 1).cluster, plan, too_large);
    REQUIRE(alone);
    const core::Seconds gathering = gathered->breakdown.tensor_parallel - alone->breakdown.tensor_parallel,
                        passing = ring->breakdown.tensor_parallel - alone->breakdown.tensor_parallel;
    CHECK(gathering.value > 0);
    CHECK(passing < gathering * 0.3);
    // As much is computed, and results of pieces are merged.
    CHECK(ring->breakdown.compute.value == Approx(gathered->breakdown.compute.value).epsilon(0.05));
    CHECK(ring->hardware_flops_per_gpu.value * ring->step_time.value ==
          Approx(gathered->hardware_flops_per_gpu.value * gathered->step_time.value));
}

TEST_CASE("a search also passes keys on in rings, beside its space") {
    const model::ModelGraph graph = load_graph("llama-3-8b", 131072);
    const std::vector<planner::Target> targets = {target_of("p5.48xlarge", 4)};
    planner::SearchRequest request;
    request.global_batch = 8;
    request.limits.pipeline = {1};
    core::Diagnostics diagnostics;
    const planner::SearchResult without = planner::search_plans(graph, targets, request, diagnostics);
    request.tries_rings = true;
    const planner::SearchResult with = planner::search_plans(graph, targets, request, diagnostics);
    request.limits.context_communication = {ContextCommunication::all_gather,
                                            ContextCommunication::all_to_all, ContextCommunication::ring};
    const planner::SearchResult asked = planner::search_plans(graph, targets, request, diagnostics);
    for (const planner::SearchResult* result : {&without, &with, &asked})
        REQUIRE_FALSE(result->plans.empty());
    CHECK(with.account.space == without.account.space);
    CHECK(without.account.in_rings == 0);
    CHECK(with.account.in_rings > 0);
    CHECK(asked.account.in_rings == 0);  // they are in the space
    CHECK(asked.account.space > with.account.space);
    CHECK(with.plans.front().value < without.plans.front().value * 0.99);
    CHECK(with.plans.front().plan.context_communication == ContextCommunication::ring);
    CHECK(asked.plans.front().value <= with.plans.front().value);
}

TEST_CASE("rings are tried of plans that exchange heads and offload, too") {
    // 682 s instead of 691, where no plan that gathers keys was simulated.
    const model::ModelGraph graph = load_graph("llama-2-7b", 131072);
    planner::SearchRequest request;
    request.global_batch = 96;
    request.limits.pipeline = request.limits.tensor = {1};
    core::Diagnostics diagnostics;
    const std::vector<planner::Target> targets = {target_of("p5.48xlarge", 1)};
    const planner::SearchResult without = planner::search_plans(graph, targets, request, diagnostics);
    request.tries_rings = true;
    const planner::SearchResult with = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE_FALSE(without.plans.empty());
    REQUIRE_FALSE(with.plans.empty());
    CHECK(without.plans.front().plan.context_communication == ContextCommunication::all_to_all);
    CHECK(with.plans.front().plan.context_communication == ContextCommunication::ring);
    CHECK(with.plans.front().plan.offload != schedule::Offload::none);
    CHECK(with.plans.front().value < without.plans.front().value * 0.99);
}

TEST_CASE("a first plan is refined by how its tokens' keys come to it, too") {
    // With shards of four replicas, which it was refined to: 6.76 s instead of 6.84.
    const model::ModelGraph graph = load_graph("llama-2-7b", 8192);
    planner::SearchRequest request = small_request(16, 7);
    request.tries_rings = true;
    request.limits.tensor = {1};
    request.limits.pipeline = {3};
    core::Diagnostics diagnostics;
    const std::vector<planner::Target> targets = {target_of("g5.48xlarge", 3)};
    const planner::SearchResult plain = planner::search_plans(graph, targets, request, diagnostics);
    request.refines_first = true;
    const planner::SearchResult refined = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(plain.plans.size() == 1);
    REQUIRE(refined.plans.size() == 1);
    const planner::RankedPlan& first = refined.plans.front();
    CHECK(first.value < plain.plans.front().value);
    REQUIRE(first.plan.layout.context > 1);
    for (const auto communication :
         {ContextCommunication::all_gather, ContextCommunication::all_to_all, ContextCommunication::ring}) {
        schedule::Plan other = first.plan;
        other.context_communication = communication;
        const auto evaluation = sim::evaluate(graph, targets[0].cluster, other, diagnostics);
        REQUIRE(evaluation);
        CHECK((!evaluation->fits || evaluation->step_time.value > first.value * (1 - 1.001e-3)));
    }
    CHECK(first.plan.context_communication == ContextCommunication::ring);
}
