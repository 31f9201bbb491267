// Plans of which some layers run again, beside the space of a search.
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "planner/stage_collection.h"
#include "schedule/plan/plan_file.h"
#include "tests/model/catalogue.h"
#include "tests/planner/questions.h"

namespace {

std::optional<sim::Evaluation> evaluated(const model::ModelGraph& graph, const planner::Target& target,
                                         const schedule::Plan& plan) {
    core::Diagnostics diagnostics;
    return sim::evaluate(graph, target.cluster, plan, diagnostics);
}

// Of all plans that run nothing again, with these parts of every layer run again, none is better than the
// first; how many of them fit.
int check_none_is_better(const model::ModelGraph& graph, const planner::Target& target,
                         const planner::RankedPlan& first, schedule::RecomputeModules modules) {
    planner::StageCollection stages(graph, target.cluster.instance.device);
    int fitting = 0;
    for (schedule::Plan plan : planner::legal_plans(
             graph, target.cluster, {.global_batch = 8, .base = target.base, .most_virtual_stages = 1})) {
        if (plan.recompute != schedule::Recompute::none) continue;
        plan.recompute = schedule::Recompute::selective;
        plan.recompute_modules = modules;
        const schedule::Partition* const partition = stages.partition(plan);
        if (!partition) continue;
        plan.partition = *partition;
        const std::optional<sim::Evaluation> evaluation = evaluated(graph, target, plan);
        REQUIRE(evaluation);
        INFO(planner::describe(plan));
        fitting += evaluation->fits;
        CHECK((!evaluation->fits || evaluation->step_time.value >= first.value * (1 - 1e-9)));
    }
    return fitting;
}

}  // namespace

TEST_CASE("of a plan too large for memory as few layers run again as fit, where that is best of all") {
    const model::ModelGraph graph = small_llama();
    int partly = 0;
    for (const double gibibytes : {2.2, 2.6, 3.0, 3.4, 3.8}) {
        INFO(gibibytes << " GiB");
        const std::vector<planner::Target> targets = {tight(gibibytes)};
        planner::SearchRequest request;
        request.global_batch = 8;
        request.keep = 1;
        request.most_virtual_stages = 1;
        request.offload = schedule::Offload::none;
        core::Diagnostics diagnostics;
        const planner::SearchResult plain = planner::search_plans(graph, targets, request, diagnostics);
        request.recomputes_some = true;
        const planner::SearchResult some = planner::search_plans(graph, targets, request, diagnostics);
        request.threads = 1;
        const planner::SearchResult alone = planner::search_plans(graph, targets, request, diagnostics);
        REQUIRE(plain.plans.size() == 1);
        REQUIRE(some.plans.size() == 1);
        const planner::RankedPlan& first = some.plans.front();
        CHECK(first.value <= plain.plans.front().value);
        CHECK(alone.plans.front().plan == first.plan);
        CHECK(some.account.is_proven_optimal);
        CHECK(*some.account.lower_bound <= first.value * (1 + 1e-9));
        CHECK(some.account.space == plain.account.space);
        CHECK(sum_of(some.account) == some.account.space);
        CHECK(plain.account.partly_recomputed == 0);
        CHECK_FALSE(plain.account.recomputes_some);
        CHECK(some.account.recomputes_some);
        if (first.plan.recompute_layers > 0) {
            ++partly;
            CHECK(some.account.partly_recomputed > 0);
            schedule::Plan fewer = first.plan;
            if (--fewer.recompute_layers == 0) fewer.recompute = schedule::Recompute::none;
            CHECK_FALSE(evaluated(graph, targets[0], fewer)->fits);
            schedule::Plan all = first.plan;
            all.recompute_layers = 0;
            CHECK(evaluated(graph, targets[0], all)->step_time.value > first.value);
        }
        // None of all plans is better with any number of layers run again.
        planner::StageCollection stages(graph, targets[0].cluster.instance.device);
        const std::vector<schedule::Plan> plans =
            planner::legal_plans(graph, targets[0].cluster,
                                 {.global_batch = 8, .base = targets[0].base, .most_virtual_stages = 1});
        int fitting = 0;
        for (std::size_t i = 0; i < plans.size(); ++i) {
            schedule::Plan plan = plans[i];
            if (plan.recompute != schedule::Recompute::full) continue;
            plan.recompute_layers = 1 + int(i % 7);
            const schedule::Partition* const partition = stages.partition(plan);
            if (!partition) continue;
            plan.partition = *partition;
            const std::optional<sim::Evaluation> evaluation = evaluated(graph, targets[0], plan);
            REQUIRE(evaluation);
            if (!evaluation->fits) continue;
            ++fitting;
            INFO(planner::describe(plan));
            CHECK(evaluation->step_time.value >= first.value * (1 - 1e-9));
        }
        CHECK(fitting > 10);
    }
    CHECK(partly > 0);
}

TEST_CASE(
    "stages run as many layers again as each lacks memory for, with cuts of their own, where that is best") {
    const model::ModelGraph graph = small_llama();
    int by_stage = 0, fitting = 0;
    for (const double gibibytes : {2.4, 2.6, 2.9, 3.2, 3.6}) {
        INFO(gibibytes << " GiB");
        const planner::Target target = tight(gibibytes);
        planner::SearchRequest request = small_request(16, 1);
        request.offload = schedule::Offload::none;
        request.limits.schedules = {"1f1b"};
        request.limits.pipeline = {4};
        core::Diagnostics diagnostics;
        const planner::SearchResult plain = planner::search_plans(graph, {target}, request, diagnostics);
        request.recomputes_some = request.refines_first = true;
        const planner::SearchResult some = planner::search_plans(graph, {target}, request, diagnostics);
        request.threads = 1;
        const planner::SearchResult alone = planner::search_plans(graph, {target}, request, diagnostics);
        REQUIRE(some.plans.size() == 1);
        const planner::RankedPlan& first = some.plans.front();
        if (!plain.plans.empty()) CHECK(first.value <= plain.plans.front().value);
        CHECK(alone.plans.front().plan == first.plan);
        CHECK(first.evaluation.fits);
        CHECK(sum_of(some.account) == some.account.space);
        if (!first.plan.recomputes_by_stage()) continue;
        ++by_stage;
        // None of its stages fits with fewer, and no other cuts and numbers are better.
        const std::vector<std::int32_t> own = first.plan.recompute_layers_by_stage;
        for (std::size_t s = 0; s < own.size(); ++s) {
            if (own[s] == 0) continue;
            schedule::Plan fewer = first.plan;
            --fewer.recompute_layers_by_stage[s];
            CHECK_FALSE(evaluated(graph, target, fewer)->fits);
        }
        const int units = int(graph.units.size());
        for (int a = 1; a < units - 2; ++a)
            for (int b = a + 1; b < units - 1; ++b)
                for (int c = b + 1; c < units; ++c)
                    for (const std::vector<std::int32_t>& layers :
                         std::vector<std::vector<std::int32_t>>{{1, 0, 0, 0},
                                                                {2, 0, 0, 0},
                                                                {3, 0, 0, 0},
                                                                {1, 1, 0, 0},
                                                                {2, 1, 0, 0},
                                                                {3, 1, 0, 0},
                                                                {3, 2, 0, 0},
                                                                {2, 1, 1, 0},
                                                                {3, 2, 1, 0},
                                                                {4, 3, 1, 0},
                                                                {2, 2, 2, 0},
                                                                {3, 2, 2, 1}}) {
                        schedule::Plan other = first.plan;
                        other.partition.first_units = {0, a, b, c};
                        other.recompute_layers_by_stage = layers;
                        const auto evaluation = evaluated(graph, target, other);
                        REQUIRE(evaluation);
                        INFO(core::to_toml(schedule::to_value(other)));
                        fitting += evaluation->fits ? 1 : 0;
                        CHECK((!evaluation->fits || evaluation->step_time.value >= first.value * (1 - 1e-9)));
                    }
    }
    CHECK(by_stage > 0);
    CHECK(fitting > 20);
}

TEST_CASE("of a plan too large for memory what costs little runs again of all layers, where that is best") {
    using schedule::RecomputeModule;
    const model::ModelGraph graph = small_llama();
    planner::SearchRequest request;
    request.global_batch = 8;
    request.keep = 1;
    request.most_virtual_stages = 1;
    request.offload = schedule::Offload::none;
    request.recomputes_some = true;
    int parts = 0;
    for (const double gibibytes : {2.4, 2.8, 3.0, 3.2, 3.5, 4.0}) {
        INFO(gibibytes << " GiB");
        planner::Target target = tight(gibibytes);
        core::Diagnostics diagnostics;
        const planner::SearchResult result = planner::search_plans(graph, {target}, request, diagnostics);
        REQUIRE(result.plans.size() == 1);
        const planner::RankedPlan& first = result.plans.front();
        CHECK(sum_of(result.account) == result.account.space);
        if (first.plan.runs_again(RecomputeModule::layernorm) ||
            first.plan.runs_again(RecomputeModule::activation)) {
            ++parts;
            CHECK(result.account.partly_recomputed > 0);
            schedule::Plan none = first.plan;
            none.recompute = schedule::Recompute::none;
            CHECK_FALSE(evaluated(graph, target, none)->fits);
            // Where it is not taken there is another.
            auto runnable = std::make_shared<planner::RunnablePlans>();
            runnable->may_take = [](const schedule::Plan& plan) {
                return plan.recompute != schedule::Recompute::selective || plan.runs_cores_again_alone();
            };
            target.runnable = runnable;
            const planner::SearchResult other = planner::search_plans(graph, {target}, request, diagnostics);
            CHECK(other.plans.front().value > first.value);
            CHECK(runnable->may_take(other.plans.front().plan));
        }
        check_none_is_better(graph, target, first, {RecomputeModule::layernorm, RecomputeModule::activation});
    }
    CHECK(parts > 0);
}

TEST_CASE("of a mixture too large for memory experts make activations again, where that is best") {
    using schedule::RecomputeModule;
    const model::ModelGraph graph = mixture_of(
        {.layers = 4, .tokens = 8192, .vocabulary = 1024, .key_heads = 8, .ffn = 4096, .experts = 4});
    planner::SearchRequest request;
    request.global_batch = 8;
    request.keep = 1;
    request.most_virtual_stages = 1;
    request.offload = schedule::Offload::none;
    request.recomputes_some = request.refines_first = true;
    int again = 0, fitting = 0;
    for (const double gibibytes : {2.0, 2.8, 3.2, 3.6}) {
        INFO(gibibytes << " GiB");
        const planner::Target target = tight(gibibytes);
        core::Diagnostics diagnostics;
        const planner::SearchResult result = planner::search_plans(graph, {target}, request, diagnostics);
        REQUIRE(result.plans.size() == 1);
        const planner::RankedPlan& first = result.plans.front();
        if (first.plan.runs_again(RecomputeModule::moe_act)) {
            ++again;
            schedule::Plan none = first.plan;
            none.recompute = schedule::Recompute::none;
            CHECK_FALSE(evaluated(graph, target, none)->fits);
        }
        fitting += check_none_is_better(graph, target, first, {RecomputeModule::moe_act});
    }
    CHECK(fitting > 10);
    CHECK(again > 0);
}

TEST_CASE("layers run again in part only where recomputation is free to choose") {
    const model::ModelGraph graph = small_llama();
    planner::SearchRequest request;
    request.global_batch = 8;
    request.most_virtual_stages = 1;
    request.offload = schedule::Offload::none;
    request.recomputes_some = true;
    const auto partly_of = [&](const planner::Target& target) {
        core::Diagnostics diagnostics;
        const planner::SearchResult result = planner::search_plans(graph, {target}, request, diagnostics);
        REQUIRE_FALSE(result.plans.empty());
        for (const planner::RankedPlan& ranked : result.plans)
            if (ranked.plan.recompute_layers > 0) return true;
        return result.account.recomputes_some && result.account.partly_recomputed > 0;
    };
    SECTION("what runs the plan takes none") {
        planner::Target target = tight(2.6);
        auto runnable = std::make_shared<planner::RunnablePlans>();
        runnable->takes = [](const schedule::Plan& plan) { return plan.recompute_layers == 0; };
        target.runnable = runnable;
        CHECK_FALSE(partly_of(target));
    }
    SECTION("a value is asked for") {
        request.limits.recompute = {schedule::Recompute::none, schedule::Recompute::full};
        CHECK_FALSE(partly_of(tight(3.0)));
    }
    SECTION("memory decides") {
        request.objective = planner::Objective::memory;
        CHECK_FALSE(partly_of(tight(3.0)));
    }
}

TEST_CASE("of a plan that offloads too much for hosts as few layers run again as fit there") {
    // Four samples at a time would offload 806 GiB of a node that has 768; with three of 40 layers run again
    // they are faster than two at a time.
    const model::ModelGraph graph = load_graph("llama-2-13b", 4096);
    const planner::Target target = target_of("g5.48xlarge", 4);
    planner::SearchRequest request = small_request(128, 1);
    request.limits.tensor = request.limits.pipeline = {1};
    core::Diagnostics diagnostics;
    const planner::SearchResult plain = planner::search_plans(graph, {target}, request, diagnostics);
    request.recomputes_some = true;
    const planner::SearchResult some = planner::search_plans(graph, {target}, request, diagnostics);
    request.threads = 1;
    const planner::SearchResult alone = planner::search_plans(graph, {target}, request, diagnostics);
    REQUIRE(plain.plans.size() == 1);
    REQUIRE(some.plans.size() == 1);
    const planner::RankedPlan& first = some.plans.front();
    CHECK(alone.plans.front().plan == first.plan);
    CHECK(first.value < plain.plans.front().value * 0.96);
    CHECK(first.plan.offload == schedule::Offload::host);
    CHECK(sum_of(some.account) == some.account.space);
    REQUIRE(first.plan.recompute_layers > 0);
    schedule::Plan fewer = first.plan;
    if (--fewer.recompute_layers == 0) fewer.recompute = schedule::Recompute::none;
    const std::optional<sim::Evaluation> too_large = evaluated(graph, target, fewer);
    REQUIRE(too_large);
    CHECK_FALSE(too_large->fits);
    CHECK(too_large->peak_memory <= too_large->available_memory);
    CHECK(too_large->host_memory > *too_large->available_host_memory);
    // None is better with another number of layers or horizon.
    for (const int micro_batch : {1, 2, 4})
        for (int layers = 1; layers <= 8; ++layers)
            for (const int horizon : {1, 2, 4}) {
                schedule::Plan other = first.plan;
                other.micro_batch = micro_batch;
                other.micro_batches = 128 / other.layout.data / micro_batch;
                other.recompute_layers = layers;
                other.activation_loading_horizon = horizon;
                const std::optional<sim::Evaluation> evaluation = evaluated(graph, target, other);
                REQUIRE(evaluation);
                INFO(planner::describe(other));
                CHECK((!evaluation->fits || evaluation->step_time.value >= first.value * (1 - 1e-9)));
            }
}
