// How far rounding takes a model, and that what is no rounding is still found.
#include <catch2/catch.hpp>

#include <cmath>

#include "model/builder/vision/convolutional.h"
#include "tests/exec/tiny.h"

namespace {

// The last stage has 1 x 1 pixels: a batch norm there is over as many values a channel as samples.
model::ModelGraph residual_network() {
    model::ResnetDescription description;
    description.name = "tiny residual network";
    description.depth = 18;
    description.image_size = 32;
    description.base_channels = 4;
    description.classes = 5;
    return model::build_resnet(description);
}

schedule::Plan plan_of(int samples) {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.learning_rate = 0.05;
    plan.micro_batch = samples;
    plan.micro_batches = 2;
    return plan;
}

constexpr int bits_of_fp32 = 24;

struct Checked {
    std::vector<double> differences, bounds;
};
Checked check(const schedule::Plan& trained, const schedule::Plan& plan, const model::ModelGraph& graph,
              int steps) {
    const auto data = tiny::data_of(graph);
    exec::RunOptions options;
    options.steps = steps;
    options.time_limit = core::seconds(60);
    const std::vector<double> losses =
        exec::run(tiny::program_of(trained, graph), graph, data, options).losses;
    const exec::ReferenceOptions reference{steps, options.seed};
    const std::vector<double> exact = exec::run_reference(graph, plan, data, reference).losses;
    Checked result;
    for (std::size_t i = 0; i < exact.size(); ++i)
        result.differences.push_back(std::abs(losses[i] / exact[i] - 1));
    result.bounds = exec::rounding_bounds(graph, plan, data, reference, exact, bits_of_fp32);
    return result;
}

}  // namespace

TEST_CASE("batch norms of two values a channel magnify rounding, and the bound knows by how much") {
    const model::ModelGraph graph = residual_network();
    const schedule::Plan plan = plan_of(2);
    const Checked checked = check(plan, plan, graph, 5);
    for (std::size_t i = 0; i < checked.bounds.size(); ++i) {
        INFO("step " << i << ": " << checked.differences[i] << " of " << checked.bounds[i]);
        CHECK(checked.differences[i] <= checked.bounds[i]);
    }
    CHECK(checked.bounds.back() > 1e-3);  // far more than what is allowed without it
    // Before the first update little is magnified: what is wrong with the forward pass is found there.
    CHECK(checked.bounds.front() < 1e-5);
}

TEST_CASE("what is no rounding is found beyond the bound") {
    const model::ModelGraph graph = residual_network();
    const auto is_found = [&](const schedule::Plan& wrong, const schedule::Plan& plan) {
        const Checked found = check(wrong, plan, graph, 3);
        for (std::size_t i = 0; i < found.bounds.size(); ++i) {
            UNSCOPED_INFO("step " << i << ": " << found.differences[i] << " of " << found.bounds[i]);
            if (found.differences[i] > std::max(1e-5, found.bounds[i])) return true;
        }
        return false;
    };
    const int samples = GENERATE(2, 32);
    const schedule::Plan plan = plan_of(samples);
    schedule::Plan wrong = plan;
    SECTION("nothing is wrong") { CHECK_FALSE(is_found(wrong, plan)); }
    SECTION("other samples in a micro-batch, even with two values a channel") {
        wrong.micro_batch = plan.micro_batch / 2;
        wrong.micro_batches = plan.micro_batches * 2;
        CHECK(is_found(wrong, plan));
    }
    SECTION("a learning rate that is 1 % too high, where a channel has 32 values") {
        if (samples < 32) return;
        wrong.optimizer.learning_rate *= 1.01;
        CHECK(is_found(wrong, plan));
    }
    SECTION("no update at all") {
        wrong.optimizer.learning_rate = 0;
        CHECK(is_found(wrong, plan));
    }
}

TEST_CASE("the bound of a model without such norms is that of rounding") {
    const model::ModelGraph graph = tiny::gpt(2);
    const schedule::Plan plan = tiny::plan();
    const Checked checked = check(plan, plan, graph, 5);
    for (std::size_t i = 0; i < checked.bounds.size(); ++i) {
        CHECK(checked.differences[i] <= checked.bounds[i]);
        CHECK(checked.bounds[i] < 1e-5);
        CHECK(checked.bounds[i] > 1e-9);
    }
}
