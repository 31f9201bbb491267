#include <catch2/catch.hpp>

#include <map>
#include <random>

#include "core/diagnostics.h"
#include "model/repetition.h"
#include "model/segment.h"
#include "planner/search_space.h"
#include "planner/stage_collection.h"
#include "schedule/pass/lower.h"
#include "schedule/pass/stage_recipes.h"
#include "schedule/plan/memory.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

model::OperatorRange units(const model::ModelGraph& graph, std::size_t first, std::size_t end) {
    return {graph.units[first].operators.begin, graph.units[end - 1].operators.end};
}

constexpr const char* catalogue[] = {"gpt2",         "llama-2-7b", "bert-base", "t5-small",
                                     "mixtral-8x7b", "resnet50",   "swin-t",    "vit-base-16"};

void draw_recomputation(schedule::Plan& plan, std::mt19937& random) {
    plan.recompute = static_cast<schedule::Recompute>(random() % 3);
    if (plan.recompute == schedule::Recompute::full) plan.recompute_layers = int(random() % 5);
    if (plan.recompute == schedule::Recompute::selective && random() % 2)
        plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                  schedule::RecomputeModule::activation};
}

// How a micro-batch passes through the layers of a rank.
void draw_pass(schedule::Plan& plan, const model::ModelGraph& graph, std::mt19937& random) {
    draw_recomputation(plan, random);
    plan.micro_batch = 1 + static_cast<int>(random() % 4);
    plan.attention =
        random() % 2 ? model::AttentionImplementation::flash : model::AttentionImplementation::unfused;
    if (random() % 2 && !model::tensor_parallel_unsupported(graph, 2)) {
        plan.layout.tensor = 2;
        plan.sequence_parallel =
            random() % 2 && !model::sequence_parallel_unsupported(graph) && graph.tokens_per_sample % 2 == 0;
    }
}

}  // namespace

TEST_CASE(
    "layers of a uniform model are alike wherever they are; embedding, head and what touches them are not") {
    const auto graph = load_graph("gpt2");  // embedding, 12 layers, head
    REQUIRE(graph.units.size() == 14);
    model::Repetition repetition(graph);
    const auto third = repetition.first_like(units(graph, 5, 8));
    CHECK(third == units(graph, 2,
                         5));  // though nobody asked about those before; units 1 to 4 follow on the embedding
    CHECK(repetition.first_like(units(graph, 8, 11)) == third);
    CHECK_FALSE(repetition.first_like(units(graph, 2, 6)) == third);
    CHECK(repetition.first_like(units(graph, 0, 3)) == units(graph, 0, 3));
    CHECK(repetition.first_like(units(graph, 11, 14)) == units(graph, 11, 14));
}

TEST_CASE("stages that are alike keep and need the same memory under every recomputation and split") {
    std::mt19937 random(20261121);
    for (const char* name : catalogue) {
        const auto graph = load_graph(name);
        model::Repetition repetition(graph);
        std::size_t alike = 0;
        for (int sample = 0; sample < 60; ++sample) {
            const std::size_t first = random() % graph.units.size(),
                              count = 1 + random() % std::min<std::size_t>(4, graph.units.size() - first);
            const model::OperatorRange range = units(graph, first, first + count),
                                       like = repetition.first_like(range);
            if (like == range) continue;
            ++alike;
            schedule::Plan plan;
            draw_pass(plan, graph, random);
            const auto a = schedule::activation_footprint(graph, range, plan),
                       b = schedule::activation_footprint(graph, like, plan);
            INFO(name << " units " << first << "+" << count);
            CHECK(a.saved.value == b.saved.value);
            CHECK(a.forward_transient.value == b.forward_transient.value);
            CHECK(a.backward_transient.value == b.backward_transient.value);
            CHECK(a.received.value == b.received.value);
            CHECK(a.received_saved.value == b.received_saved.value);
            CHECK(a.sent.value == b.sent.value);
            CHECK(a.received_gradient.value == b.received_gradient.value);
            CHECK(a.sent_gradient.value == b.sent_gradient.value);
            CHECK(a.saved_for_weight.value == b.saved_for_weight.value);
            CHECK(a.kept_for_weight.value == b.kept_for_weight.value);
            CHECK(a.input_transient.value == b.input_transient.value);
            CHECK(a.weight_transient.value == b.weight_transient.value);
            CHECK(schedule::state_footprint(graph, range, plan).parameters.value ==
                  schedule::state_footprint(graph, like, plan).parameters.value);
        }
        INFO(name);
        CHECK(alike > 0);
    }
}

// Runs of many alike units are not walked.
TEST_CASE("what a run of units keeps is what its own footprint says") {
    std::mt19937 random(20261201);
    std::size_t compared = 0;
    for (const char* name : {"gpt2", "llama-2-7b", "bert-base", "t5-small", "mixtral-8x7b", "resnet50",
                             "swin-t", "vit-base-16", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"}) {
        const auto graph = load_graph(name);
        for (int sample = 0; sample < 12; ++sample) {
            const auto cluster = nodes_of("p4d.24xlarge", 1);
            planner::StageCollection stages(graph, cluster.instance.device);
            schedule::Plan plan = planner::default_plan(cluster.instance.device);
            draw_pass(plan, graph, random);
            plan.offload = random() % 2 ? schedule::Offload::host : schedule::Offload::none;
            if (random() % 3 == 0 && !model::segments_unsupported(graph, 2)) {
                plan.schedule = "seq1f1b";
                plan.schedule_parameters = schedule::SegmentParameters{2};
            }
            const model::SegmentGraphs parts(graph, plan.passes_per_micro_batch());
            for (int run = 0; run < 12; ++run) {
                const std::size_t first = random() % graph.units.size(),
                                  count = 1 + random() % (graph.units.size() - first);
                const model::OperatorRange range = units(graph, first, first + count);
                const auto part = int(random() % parts.size());
                const auto walked = schedule::activation_footprint(parts[std::size_t(part)], range, plan);
                const planner::StageCollection::Saved saved = stages.saved(plan, range, part);
                INFO(name << " units " << first << "+" << count << " recompute " << int(plan.recompute)
                          << " layers " << plan.recompute_layers << " offload " << int(plan.offload)
                          << " part " << part);
                CHECK(saved.whole.value == Approx(walked.saved.value).epsilon(1e-12));
                CHECK(saved.for_weights.value ==
                      Approx((walked.saved_for_weight + walked.kept_for_weight).value).epsilon(1e-12));
                ++compared;
            }
        }
    }
    CHECK(compared == 11 * 12 * 12);
}

TEST_CASE("a stage's passes cost what the operators of its instructions cost") {
    const auto cluster = nodes_of("p4d.24xlarge", 1);
    core::Diagnostics diagnostics;
    for (const char* name : {"gpt2", "t5-small", "mixtral-8x7b"}) {
        const auto graph = load_graph(name);
        for (const auto recompute :
             {schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full}) {
            planner::StageCollection stages(graph, cluster.instance.device);
            schedule::Plan plan = planner::default_plan(cluster.instance.device);
            plan.recompute = recompute;
            plan.micro_batch = 2;
            const auto compute = sim::ComputeCost::make(graph, cluster.instance.device, plan, diagnostics);
            REQUIRE(compute);
            for (std::size_t u = 0; u < graph.units.size(); ++u) {
                const model::OperatorRange range = graph.units[u].operators;
                const planner::StageCost cost = stages.compute(plan, range);
                const auto device = [&](schedule::ComputePhase phase) {
                    return compute->price(range, phase).device + compute->price(range, phase).blocked;
                };
                INFO(name << " unit " << u);
                CHECK(cost.forward.device.value == Approx(device(schedule::ComputePhase::forward).value));
                // Whatever is computed again comes on top.
                if (recompute == schedule::Recompute::none)
                    CHECK(cost.backward.device.value ==
                          Approx(device(schedule::ComputePhase::backward).value));
                else
                    CHECK(cost.backward.device.value >=
                          device(schedule::ComputePhase::backward).value * (1 - 1e-12));
                CHECK(cost.backward_input.device <= cost.backward.device);
            }
        }
    }
}

// The whole range is lowered at once here, as the simulator's Programs are.
TEST_CASE("a stage of several units costs what its units cost, however its passes are cut") {
    const auto cluster = nodes_of("p4d.24xlarge", 2);
    core::Diagnostics diagnostics;
    std::mt19937 random(20261123);
    for (const char* name : {"gpt2", "t5-small", "mixtral-8x7b", "resnet50"}) {
        const auto graph = load_graph(name);
        for (int sample = 0; sample < 40; ++sample) {
            planner::StageCollection stages(graph, cluster.instance.device);
            schedule::Plan plan = planner::default_plan(cluster.instance.device);
            draw_recomputation(plan, random);
            plan.micro_batch = 1 << (random() % 3);
            plan.micro_batches = 4;
            plan.layout.tensor = 1 << (random() % 3);
            if (model::tensor_parallel_unsupported(graph, plan.layout.tensor)) plan.layout.tensor = 1;
            plan.layout.data = 2;
            plan.sequence_parallel =
                plan.layout.tensor > 1 && random() % 2 == 0 && !model::sequence_parallel_unsupported(graph);
            const std::size_t first = random() % graph.units.size(),
                              count = 1 + random() % (graph.units.size() - first);
            const model::OperatorRange range = units(graph, first, first + count);
            const auto prices = sim::ComputeCost::make(graph, cluster.instance.device, plan, diagnostics);
            REQUIRE(prices);
            const schedule::StageRecipes recipes(plan, graph, range);
            const auto whole = [&](schedule::ComputePhase phase) {
                planner::PassCost cost;
                for (const schedule::Step& step : recipes.of(phase))
                    if (step.kind == schedule::Step::Kind::compute) {
                        const sim::ComputePrice price = prices->price(step.operators, step.phase);
                        cost.device += price.device + price.blocked;
                        cost.host += price.host + price.blocked;
                    }
                return cost;
            };
            const planner::StageCost cost = stages.compute(plan, range);
            INFO(name << " units " << first << "+" << count << " tensor " << plan.layout.tensor);
            const auto check = [&](schedule::ComputePhase phase, const planner::PassCost& sum) {
                CHECK(sum.device.value == Approx(whole(phase).device.value).epsilon(1e-11));
                CHECK(sum.host.value == Approx(whole(phase).host.value).epsilon(1e-11));
            };
            check(schedule::ComputePhase::forward, cost.forward);
            check(schedule::ComputePhase::backward, cost.backward);
            check(schedule::ComputePhase::backward_input, cost.backward_input);
        }
    }
}
