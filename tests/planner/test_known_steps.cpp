// What a search takes for known: the same plan, and one whose buckets of another size hold the same.
#include <catch2/catch.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/diagnostics.h"
#include "planner/search/known_steps.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

namespace {

// Parameters of each bucket of each rank.
std::vector<std::vector<std::vector<std::int32_t>>> buckets_of(const schedule::Plan& plan,
                                                               const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
    REQUIRE(order);
    std::vector<std::vector<std::vector<std::int32_t>>> all;
    for (const schedule::RankProgram& list : schedule::lower(plan, graph, *order).classes) {
        all.emplace_back();
        for (const schedule::ParameterBucket& bucket : list.buckets) {
            all.back().emplace_back();
            for (const model::ParameterId id : bucket.parameters) all.back().back().push_back(id.index);
        }
    }
    return all;
}

// Plans that train with one copy of the model.
std::vector<schedule::Plan> plans_of(const model::ModelGraph& graph, const cluster::Cluster& cluster) {
    std::vector<schedule::Plan> plans;
    for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules())
        for (const int stages : {1, 2})
            for (const int tensor : {1, 2})
                for (const schedule::Sharding sharding :
                     {schedule::Sharding::none, schedule::Sharding::gradients}) {
                    schedule::Plan plan;
                    plan.schedule = order.name;
                    plan.layout = {.data = 4 / tensor, .tensor = tensor, .pipeline = 2};
                    plan.virtual_stages = stages;
                    plan.micro_batches = 4;
                    plan.sequence_parallel = tensor > 1;
                    plan.sharding = sharding;
                    core::Diagnostics unsupported;
                    if (order.is_bidirectional || order.is_forward_only || order.is_asynchronous ||
                        !schedule::check_schedule(plan, unsupported))
                        continue;
                    const auto partition = schedule::complete_partition(plan, graph);
                    if (!partition) continue;
                    plan.partition = *partition;
                    schedule::check_plan(plan, graph, cluster.device_count(), nullptr, unsupported);
                    if (!unsupported.has_errors()) plans.push_back(plan);
                }
    return plans;
}

}  // namespace

TEST_CASE("buckets of another size are known for the same where they hold the same on every rank") {
    const planner::Target target = target_of("p3.16xlarge", 1);
    std::size_t plans = 0, same = 0, other = 0, missed = 0;
    for (const model::ModelGraph& graph : {small_llama(), mixture_of({.layers = 6})}) {
        planner::StageCollection stages(graph, target.cluster.instance.device);
        for (const schedule::Plan& plan : plans_of(graph, target.cluster)) {
            ++plans;
            for (const double mine : {0.1, 1.0, 3.0, 5.0, 10.0})
                for (const double theirs : {0.1, 2.0, 4.0, 8.0, 25.0}) {
                    schedule::Plan one = plan, two = plan;
                    one.gradient_bucket = core::mebibytes(mine);
                    two.gradient_bucket = core::mebibytes(theirs);
                    const bool is_same = buckets_of(one, graph) == buckets_of(two, graph);
                    const bool is_known = stages.has_same_buckets(one, two.gradient_bucket);
                    INFO(plan.schedule << " x" << plan.virtual_stages << ", " << mine << " and " << theirs);
                    CHECK((!is_known || is_same));
                    CHECK(stages.has_same_buckets(two, one.gradient_bucket) == is_known);
                    ++(is_known ? same : other);
                    missed += is_same && !is_known ? 1 : 0;
                }
        }
    }
    CHECK(plans >= 40);
    CHECK(same >= plans);
    CHECK(other >= plans);
    // The last bucket of a stage is closed there, whatever its size; it counts as if more had come.
    CHECK(missed * 4 <= same);
}

TEST_CASE("a step is known of its plan alone, with all that is asked of it") {
    const model::ModelGraph graph = small_llama();
    const planner::Target target = target_of("p3.16xlarge", 1);
    planner::StageCollection stages(graph, target.cluster.instance.device);
    schedule::Plan plan = target.base;
    plan.layout = {.data = 4, .tensor = 1, .pipeline = 2};
    plan.micro_batches = 4;
    plan.partition = *schedule::complete_partition(plan, graph);
    sim::Evaluation evaluation;
    evaluation.step_time = core::Seconds(3);
    planner::KnownSteps known;
    CHECK(known.find(0, plan, false, stages) == nullptr);
    known.add(0, plan, evaluation, false);
    REQUIRE(known.find(0, plan, false, stages) != nullptr);
    CHECK(known.find(0, plan, false, stages)->step_time == evaluation.step_time);
    CHECK(known.find(0, plan, true, stages) == nullptr);
    CHECK(known.find(1, plan, false, stages) == nullptr);
    known.add(0, plan, evaluation, true);
    CHECK(known.find(0, plan, true, stages) != nullptr);

    const auto is_known_with = [&](const auto& change) {
        schedule::Plan other = plan;
        change(other);
        return known.find(0, other, false, stages) != nullptr;
    };
    CHECK_FALSE(is_known_with([](schedule::Plan& other) { ++other.partition.first_units[1]; }));
    CHECK_FALSE(is_known_with([](schedule::Plan& other) { other.schedule = "gpipe"; }));
    CHECK_FALSE(is_known_with([](schedule::Plan& other) { other.recompute = schedule::Recompute::full; }));
    // Two of the model's products are in one bucket of 25 MiB, and none of one byte holds two.
    CHECK_FALSE(is_known_with([](schedule::Plan& other) { other.gradient_bucket = core::Bytes(1); }));
    CHECK(is_known_with(
        [](schedule::Plan& other) { other.gradient_bucket = other.gradient_bucket + core::Bytes(1); }));
    // With sharded parameters a bucket is a unit, whatever its size.
    plan.sharding = schedule::Sharding::parameters;
    known.add(0, plan, evaluation, false);
    CHECK(is_known_with([](schedule::Plan& other) { other.gradient_bucket = core::Bytes(1); }));
}
