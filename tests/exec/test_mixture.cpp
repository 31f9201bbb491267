// Mixtures of experts: what a router decides, and training that equals the reference however the experts are
// spread.
#include <catch2/catch.hpp>

#include "exec/cpu/mixture.h"
#include "tests/exec/tiny.h"

TEST_CASE(
    "tokens go to their likeliest experts, and beyond its capacity an expert takes first choices before "
    "second ones") {
    model::Attributes mixture;
    mixture.experts = 3;
    mixture.experts_per_token = 2;
    // Choices: token 0 takes 0 then 1; token 1 takes 1 then 0; token 2 takes 0 then 2; equal probabilities go
    // to the lower expert.
    const float probabilities[] = {0.5f, 0.3f, 0.2f, 0.3f, 0.6f, 0.1f, 0.4f, 0.2f, 0.4f};
    const exec::cpu::Routing all = exec::cpu::route(mixture, 3, probabilities);
    CHECK(all.expert == std::vector<std::int32_t>{0, 1, 1, 0, 0, 2});
    CHECK(all.rows == std::vector<std::int64_t>{3, 2, 1});
    // Expert 0: first choices of tokens 0 and 2, then the second of 1. Expert 1: first of 1, then second of
    // 0.
    CHECK(all.row == std::vector<std::int64_t>{0, 4, 3, 2, 1, 5});
    CHECK(all.weight[0] == Approx(0.5 / 0.8));
    CHECK(all.weight[3] == Approx(0.3 / 0.9));
    // An even share is 3 x 2 / 3 = 2 copies: expert 0 drops token 1's second choice.
    mixture.capacity_factor = 1;
    const exec::cpu::Routing bounded = exec::cpu::route(mixture, 3, probabilities);
    CHECK(bounded.chosen == std::vector<std::int64_t>{3, 2, 1});
    CHECK(bounded.rows == std::vector<std::int64_t>{2, 2, 1});
    CHECK(bounded.row == std::vector<std::int64_t>{0, 3, 2, -1, 1, 4});
    CHECK(bounded.weight == all.weight);
}

TEST_CASE("a mixture of experts trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    SECTION("its kinds on one rank") {
        const std::string kind = GENERATE(
            std::string("experts_per_token = 1"), std::string("experts_per_token = 3"),
            std::string("experts_per_token = 2\ncapacity_factor = 1.0"),
            std::string("experts_per_token = 2\nauxiliary_loss = 0.1"),
            std::string(
                "experts_per_token = 2\nexpert_interval = 2\ncapacity_factor = 0.6\nauxiliary_loss = 0.5"));
        INFO(kind);
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind)));
    }
    SECTION("experts with one activation") {
        const std::string activation =
            GENERATE(std::string("gelu"), std::string("gelu_tanh"), std::string("relu"));
        tiny::check_equal(tiny::compare(
            plan, tiny::gpt(2, "experts = 4\nexperts_per_token = 2\nactivation = '" + activation + "'")));
    }
    SECTION("tensor parallel") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
        tiny::check_equal(
            tiny::compare(plan, tiny::mixtral(2, "experts_per_token = 2\nauxiliary_loss = 0.2")));
    }
    SECTION("pipelines, split backward and recomputation") {
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE("1f1b", "zb-h1");
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
        tiny::check_equal(
            tiny::compare(plan, tiny::mixtral(3, "experts_per_token = 2\nauxiliary_loss = 0.2")));
    }
    SECTION("sharded data parallel") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2)));
    }
}

TEST_CASE(
    "the reference says how near its routers' choices were, and one made the other way is another loss") {
    const schedule::Plan plan = tiny::plan();
    const model::ModelGraph graph = tiny::mixtral(2);
    const auto data = tiny::data_of(graph);
    const auto run = [&](const model::ModelGraph& model, double other_way_below) {
        return exec::run_reference(model, plan, data, {1, 1234, false, other_way_below});
    };
    const exec::ReferenceResult as_it_is = run(graph, 0);
    const double margin = as_it_is.router_margins.at(0);
    CHECK((margin > 0 && margin < 1));
    CHECK(run(graph, 0.999 * margin).losses == as_it_is.losses);
    // One token of 64, one of its two experts, nearly equal weights: a small part of the loss, and far beyond
    // rounding in double.
    const double difference = std::abs(run(graph, 1.001 * margin).losses[0] - as_it_is.losses[0]);
    CHECK(difference > 1e-9);
    CHECK(difference < 1e-2);
    CHECK(run(tiny::llama(2), 0).router_margins.empty());
}
