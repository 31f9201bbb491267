// Plans beside those of the space: what they are, that their bounds hold, and that a refined first plan has
// none that is better.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/refinement.h"
#include "planner/search.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

namespace {

std::set<int> degrees_of(const schedule::Plan& plan) {
    std::set<int> degrees;
    for (const schedule::Plan& other : planner::refinements(plan, false))
        if (other.effective_shard_degree() != plan.effective_shard_degree())
            degrees.insert(other.effective_shard_degree());
    return degrees;
}

std::set<double> buckets_of(const schedule::Plan& plan) {
    std::set<double> buckets;
    for (const schedule::Plan& other : planner::refinements(plan, false))
        if (!(other.gradient_bucket == plan.gradient_bucket))
            buckets.insert(other.gradient_bucket / core::mebibytes(1));
    return buckets;
}

std::set<int> groups_of(const schedule::Plan& plan) {
    std::set<int> groups;
    for (const schedule::Plan& other : planner::refinements(plan, false))
        if (!(other.schedule_parameters == plan.schedule_parameters))
            groups.insert(other.parameters<schedule::GroupParameters>().group_size);
    return groups;
}

}  // namespace

TEST_CASE("a plan is refined by divisors of its replicas, by group sizes and by buckets, one at a time") {
    schedule::Plan plan;
    plan.layout = {.data = 12, .tensor = 2, .pipeline = 4};
    plan.micro_batches = 16;
    CHECK(degrees_of(plan).empty());
    plan.sharding = schedule::Sharding::gradients;
    CHECK(degrees_of(plan) == std::set{2, 3, 4, 6});
    plan.shard_degree = 4;
    CHECK(degrees_of(plan) == std::set{2, 3, 6, 12});
    // Shards of three or six replicas would cut through groups of four that hold all experts.
    plan.layout.expert = 4;
    CHECK(degrees_of(plan) == std::set{2, 12});
    plan.layout.expert = 1;

    CHECK(buckets_of(plan) == std::set<double>{5, 10, 50, 100});
    plan.gradient_bucket = core::mebibytes(40);
    CHECK(buckets_of(plan) == std::set<double>{10, 25, 50, 100});
    plan.gradient_bucket = core::mebibytes(2);
    CHECK(buckets_of(plan) == std::set<double>{1, 5, 10});
    plan.gradient_bucket = core::mebibytes(2000);
    CHECK(buckets_of(plan) == std::set<double>{500, 1000});
    // Sharded parameters are reduced by units.
    plan.sharding = schedule::Sharding::parameters;
    CHECK(buckets_of(plan).empty());
    plan.sharding = schedule::Sharding::gradients;

    CHECK(groups_of(plan).empty());
    // Half the ranks up to all of them in the one schedule, all of them or more in the other.
    plan.virtual_stages = 2;
    plan.schedule = "grouped-interleaved";
    CHECK(groups_of(plan) == std::set{2});
    plan.schedule = "interleaved-1f1b";
    CHECK(groups_of(plan) == std::set{8});
    plan.schedule_parameters = schedule::GroupParameters{16};
    CHECK(groups_of(plan) == std::set{8});
    for (const schedule::Plan& other : planner::refinements(plan, false)) {
        const int changes = (other.shard_degree != plan.shard_degree ? 1 : 0) +
                            (other.gradient_bucket == plan.gradient_bucket ? 0 : 1) +
                            (other.schedule_parameters == plan.schedule_parameters ? 0 : 1);
        CHECK(changes == 1);
    }
    // Another sharding is of the space, unless something else is not; and so is another schedule.
    const auto count_of = [&](bool was_refined) {
        std::set<schedule::Sharding> shardings;
        std::set<std::string> schedules;
        std::vector<schedule::Plan> others = planner::refinements(plan, was_refined);
        for (schedule::Plan& other : planner::schedules_instead(plan, was_refined))
            others.push_back(std::move(other));
        for (const schedule::Plan& other : others) {
            shardings.insert(other.sharding);
            schedules.insert(other.schedule);
            core::Diagnostics diagnostics;
            CHECK(schedule::make_schedule(other, diagnostics));
        }
        schedules.insert(plan.schedule);
        return std::pair(shardings.size(), schedules.size());
    };
    CHECK(count_of(false) == std::pair<std::size_t, std::size_t>(1, 1));
    const auto refined = count_of(true);
    CHECK(refined.first == 4);
    // Of two stages a rank there are at least the interleaved ones and those that come back, and no more than
    // there are.
    CHECK(refined.second >= 6);
    CHECK(refined.second <= schedule::pipeline_schedules().size());
    plan.context_communication = schedule::ContextCommunication::ring;
    CHECK(count_of(false) == refined);
    plan.context_communication = schedule::ContextCommunication::all_gather;
    plan.recompute = schedule::Recompute::full;
    plan.recompute_layers = 3;
    CHECK(count_of(false) == refined);
    // Parts of layers were looked at with all of them, and one of several may be left out.
    plan.recompute = schedule::Recompute::selective;
    plan.recompute_layers = 0;
    plan.recompute_modules = {schedule::RecomputeModule::layernorm, schedule::RecomputeModule::activation};
    CHECK(count_of(false) == std::pair<std::size_t, std::size_t>(1, 1));
    std::set<int> kept;
    for (const schedule::Plan& other : planner::refinements(plan, false))
        kept.insert(other.recompute_modules.bits());
    CHECK(kept == std::set<int>{schedule::RecomputeModules{schedule::RecomputeModule::layernorm}.bits(),
                                schedule::RecomputeModules{schedule::RecomputeModule::activation}.bits(),
                                plan.recompute_modules.bits()});
    // Down to nothing: with the cuts that the plan has by now that may fit.
    const auto runs_nothing_again = [&] {
        const std::vector<schedule::Plan> others = planner::refinements(plan, false);
        return std::count_if(others.begin(), others.end(), [](const schedule::Plan& other) {
            return other.recompute == schedule::Recompute::none && other.recompute_layers == 0 &&
                   other.recompute_modules == schedule::Plan().recompute_modules;
        });
    };
    CHECK(runs_nothing_again() == 0);
    plan.recompute_modules = {schedule::RecomputeModule::layernorm};
    CHECK(runs_nothing_again() == 1);
    plan.recompute = schedule::Recompute::full;
    plan.recompute_modules = schedule::Plan().recompute_modules;
    plan.recompute_layers = 2;
    CHECK(runs_nothing_again() == 0);
    plan.recompute_layers = 1;
    CHECK(runs_nothing_again() == 1);
}

TEST_CASE("a plan takes of what another was refined to what it can have") {
    schedule::Plan refined;
    refined.layout = {.data = 12, .pipeline = 2};
    refined.micro_batches = 16;
    refined.virtual_stages = 2;
    refined.schedule = "interleaved-1f1b";
    refined.sharding = schedule::Sharding::optimizer;
    refined.shard_degree = 4;
    refined.gradient_bucket = core::mebibytes(100);
    refined.schedule_parameters = schedule::GroupParameters{8};

    schedule::Plan plan = refined;
    CHECK(planner::refined_alike(plan, refined).empty());
    // All three of them at once, and each alone.
    plan.shard_degree = 0;
    plan.gradient_bucket = core::mebibytes(25);
    plan.schedule_parameters = schedule::GroupParameters{2};
    const std::vector<schedule::Plan> alike = planner::refined_alike(plan, refined);
    REQUIRE(alike.size() == 4);
    CHECK(alike[0] == refined);
    for (std::size_t one = 1; one < alike.size(); ++one)
        CHECK(1 == (alike[one].shard_degree == 4 ? 1 : 0) +
                       (alike[one].gradient_bucket == refined.gradient_bucket ? 1 : 0) +
                       (alike[one].schedule_parameters == refined.schedule_parameters ? 1 : 0));
    // Four do not divide six replicas, nor have groups of eight a place among four micro-batches.
    plan.layout = {.data = 6, .pipeline = 4};
    plan.micro_batches = 4;
    REQUIRE(planner::refined_alike(plan, refined).size() == 1);
    CHECK(planner::refined_alike(plan, refined)[0].gradient_bucket == refined.gradient_bucket);
    CHECK(planner::refined_alike(plan, refined)[0].shard_degree == 0);
    // Shards over all replicas are those of another number of replicas too.
    plan.layout.data = 4;
    plan.shard_degree = 2;
    CHECK(planner::refined_alike(plan, refined)[0].shard_degree == 0);
    CHECK(planner::refined_alike(plan, refined)[0].effective_shard_degree() == 4);
}

TEST_CASE("no refined plan needs less memory or less time than its bounds say") {
    const auto graph = load_graph("gpt2", 512);
    const auto candidate = target_of("p3.16xlarge", 2);
    planner::OrderCollection orders;
    planner::StageCollection stages(graph, candidate.cluster.instance.device);
    planner::Bounds bounds(candidate.cluster, orders, stages);
    planner::SpaceRequest request{.global_batch = 32, .base = candidate.base, .most_virtual_stages = 2};
    int seen = 0;
    std::set<int> degrees;
    std::set<double> buckets;
    for (const schedule::Plan& plan : planner::legal_plans(graph, candidate.cluster, request)) {
        // As a search does: what plans share is computed for one of the space.
        if (seen++ % 97 != 0) continue;
        bounds.time(plan);
        for (schedule::Plan other : planner::refinements(plan, false)) {
            const auto memory = bounds.memory(other);
            const schedule::Partition* const partition = stages.partition(other);
            if (!memory || !partition) continue;
            const core::Seconds time = bounds.time_of_order(other), work = bounds.time_of_work(other),
                                any = bounds.time_of_any_partition(other);
            other.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, candidate.cluster, other, diagnostics);
            INFO(planner::describe(other) << ", shards " << other.effective_shard_degree() << ", bucket "
                                          << other.gradient_bucket.value);
            REQUIRE(evaluation);
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            for (const core::Seconds bound : {time, work, any})
                CHECK(bound.value <= evaluation->step_time.value * (1 + 1e-9));
            degrees.insert(other.effective_shard_degree());
            buckets.insert(other.gradient_bucket.value);
        }
    }
    CHECK(degrees.size() >= 4);
    CHECK(buckets.size() >= 3);
}

TEST_CASE("nothing that a first plan is refined by makes it better by a ten-thousandth") {
    // On the first divisors of the replicas gain a hundredth, on the second smaller buckets.
    for (const auto& [name, tokens, instance, nodes, batch] :
         {std::tuple{"bert-large", 512, "g5.12xlarge", 2, 64}, {"gpt2", 1024, "g4dn.12xlarge", 4, 128}}) {
        INFO(name);
        const auto graph = load_graph(name, tokens);
        const std::vector<planner::Target> targets = {target_of(instance, nodes)};
        planner::SearchRequest request = small_request(batch, 2);
        core::Diagnostics diagnostics;
        const auto plain = planner::search_plans(graph, targets, request, diagnostics);
        request.refines_first = true;
        const auto refined = planner::search_plans(graph, targets, request, diagnostics);
        request.threads = 1;
        const auto alone = planner::search_plans(graph, targets, request, diagnostics);
        REQUIRE(plain.plans.size() == 1);
        REQUIRE(refined.plans.size() == 1);
        CHECK(plain.account.refinements == 0);
        CHECK_FALSE(plain.account.is_refined);
        CHECK(refined.account.refinements > 0);
        CHECK(refined.account.is_refined);
        CHECK(alone.plans[0].plan == refined.plans[0].plan);
        CHECK(refined.plans[0].value < plain.plans[0].value * 0.995);
        CHECK(refined.account.is_proven_optimal);
        CHECK(refined.account.space == plain.account.space);
        CHECK(*refined.account.lower_bound <= refined.plans[0].value);
        std::vector<schedule::Plan> others = planner::refinements(refined.plans[0].plan, true);
        for (schedule::Plan& other : planner::schedules_instead(refined.plans[0].plan, true))
            others.push_back(std::move(other));
        for (const schedule::Plan& other : others) {
            const auto evaluation = sim::evaluate(graph, targets[0].cluster, other, diagnostics);
            REQUIRE(evaluation);
            INFO(other.effective_shard_degree() << ", " << other.gradient_bucket.value);
            CHECK(
                (!evaluation->fits || evaluation->step_time.value > refined.plans[0].value * (1 - 1.001e-4)));
        }
    }
}

TEST_CASE("what the first plan was refined to makes no plan behind it better than the first") {
    struct Question {
        const char *model, *instance;
        std::int64_t tokens;
        int nodes, batch;
        schedule::Offload optimizer;
    };
    for (const Question& question : {
             // With shards over two of four replicas the second plan comes before the first, which gains
             // less.
             Question{"gpt2-large", "g5.12xlarge", 1024, 2, 48, schedule::Offload::none},
             // A plan that is listed only after the first was refined gains more by its buckets.
             Question{"mixtral-8x7b", "p4de.24xlarge", 4096, 1, 8, schedule::Offload::host},
         }) {
        INFO(question.model << " on " << question.instance);
        const auto graph = load_graph(question.model, question.tokens);
        std::vector<planner::Target> targets = {target_of(question.instance, question.nodes)};
        targets[0].base.optimizer_offload = question.optimizer;
        if (question.optimizer == schedule::Offload::host)
            targets[0].base.gradient_bucket = core::mebibytes(200);
        planner::SearchRequest request = small_request(question.batch, 2);
        request.keep = 5;
        request.refines_first = true;
        core::Diagnostics diagnostics;
        const auto result = planner::search_plans(graph, targets, request, diagnostics);
        REQUIRE(result.plans.size() == 5);
        const planner::RankedPlan& first = result.plans[0];
        std::size_t tried = 0;
        for (const planner::RankedPlan& behind : result.plans) {
            for (const schedule::Plan& other : planner::refined_alike(behind.plan, first.plan)) {
                const auto evaluation = sim::evaluate(graph, targets[0].cluster, other, diagnostics);
                REQUIRE(evaluation);
                INFO(planner::describe(other));
                CHECK((!evaluation->fits || evaluation->step_time.value > first.value * (1 - 1.001e-4)));
                ++tried;
            }
        }
        CHECK(tried > 0);
    }
}
