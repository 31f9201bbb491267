// fp16 on processors: its numbers, and losses that are scaled.
#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <filesystem>

#include "core/random.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/cpu/low_precision.h"
#include "tests/exec/temporary_folder.h"
#include "tests/exec/tiny.h"

namespace {

constexpr core::DataType fp16 = core::DataType::fp16;

// By exponent and fraction, from the definition of binary16.
double value_of(std::uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const double size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return half >> 15 ? -size : size;
}

std::uint16_t rounded(float value) {
    std::uint16_t half = 0;
    exec::cpu::round_to_low(fp16, 1, &value, &half);
    return half;
}

schedule::Plan half_plan() {
    schedule::Plan plan = tiny::plan();
    plan.precision = {fp16, fp16, fp16, true};
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.optimizer.learning_rate = 1e-2;
    plan.optimizer.epsilon = 1e-4;
    return plan;
}

exec::RunResult train(const schedule::Plan& plan, const model::ModelGraph& graph, exec::RunOptions options) {
    options.time_limit = core::seconds(20);
    options.keeps_state = true;
    return exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options);
}

std::shared_ptr<const exec::Checkpoint> newest(const std::string& folder) {
    core::Diagnostics diagnostics;
    auto checkpoint = exec::Checkpoint::open(folder, std::nullopt, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(checkpoint);
    REQUIRE(checkpoint->manifest().loss_scaling);
    return checkpoint;
}

// The newest checkpoint as if its training had come to this scaling.
std::shared_ptr<const exec::Checkpoint> with_scaling(const std::string& folder,
                                                     const exec::LossScaling& scaling) {
    exec::CheckpointManifest manifest = newest(folder)->manifest();
    manifest.loss_scaling = scaling;
    const std::string place = exec::checkpoint_folder(folder, manifest.step);
    std::filesystem::rename(place, place + ".partial");
    exec::commit_checkpoint(folder, manifest, 2);
    return newest(folder);
}

}  // namespace

TEST_CASE("fp16 numbers are binary16's, rounded to nearest with ties to even") {
    for (int bits = 0; bits < 65536; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        float wide = 0;
        exec::cpu::widen_low(fp16, 1, &half, &wide);
        const double expected = value_of(half);
        if (std::isnan(expected)) {
            CHECK(std::isnan(wide));
            CHECK(std::isnan(value_of(rounded(wide))));
            continue;
        }
        if (wide != expected || rounded(wide) != half) FAIL("half " << bits << " is " << wide);
        // Half way to the next one: the even one of both; a little less or more: the nearer.
        if (half >> 15 || half >= 0x7BFF) continue;
        const double next = value_of(static_cast<std::uint16_t>(half + 1));
        const auto middle = static_cast<float>((expected + next) / 2);
        const auto even = static_cast<std::uint16_t>(half + (half & 1));
        if (rounded(middle) != even || rounded(-middle) != (even | 0x8000) ||
            rounded(std::nextafter(middle, 0.0f)) != half ||
            rounded(std::nextafter(middle, INFINITY)) != half + 1)
            FAIL("between half " << bits << " and the next");
    }
    CHECK(value_of(rounded(65519.0f)) == 65504);
    CHECK(value_of(rounded(65520.0f)) == INFINITY);
    CHECK(value_of(rounded(-1e30f)) == -INFINITY);
    CHECK(rounded(std::ldexp(1.0f, -26)) == 0);
}

TEST_CASE("the scale of losses follows torch's GradScaler") {
    // torch 2.15.0, torch.amp.GradScaler("cpu"), fed 2,000 good steps, a bad one, 1,999 good ones, two bad
    // ones and 2,000 good ones: get_scale() after each of these.
    exec::LossScaling scaling;
    const auto perform = [&](int steps, bool are_good) {
        for (int i = 0; i < steps; ++i) scaling.end_step(are_good);
        return scaling.scale;
    };
    CHECK(scaling.scale == 65536);
    CHECK(perform(1999, true) == 65536);
    CHECK(perform(1, true) == 131072);
    CHECK(perform(1, false) == 65536);
    CHECK(perform(1999, true) == 65536);
    CHECK(perform(2, false) == 16384);
    CHECK(perform(2000, true) == 32768);
    CHECK(scaling.left_out == 3);
}

TEST_CASE("plans in fp16 train as the reference does, to the rounding of 11 bits") {
    schedule::Plan plan = half_plan();
    model::ModelGraph graph = tiny::gpt(4);
    // Others divide by gradients, and so magnify their rounding.
    const bool is_sgd = GENERATE(true, false);
    if (is_sgd) plan.optimizer = tiny::plan().optimizer;
    SECTION("one rank") {}
    SECTION("gradients in fp32, clipped") {
        plan.precision.gradients = core::DataType::fp32;
        plan.optimizer.gradient_clipping = 0.05;
    }
    SECTION("pipeline 2 x data 2, clipped in fp16") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.optimizer.gradient_clipping = 0.05;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    }
    SECTION("tensor 2 x context 2") {
        graph = tiny::llama(3);
        plan.layout.tensor = plan.layout.context = plan.layout.data = 2;
    }
    SECTION("experts with a balance loss") {
        graph = tiny::mixtral(2, "experts_per_token = 2\nauxiliary_loss = 0.3");
        plan.layout.data = plan.layout.expert = 2;
    }
    SECTION("LAMB") { plan.optimizer.kind = schedule::OptimizerKind::lamb; }
    INFO(core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison comparison = tiny::compare(plan, graph, 4);
    // Some roundings of 2^-11 each.
    CHECK(comparison.losses < 2e-3);
    CHECK(comparison.held_out < 2e-3);
    if (plan.optimizer.kind == schedule::OptimizerKind::sgd) CHECK(comparison.parameters < 2e-2);
    CHECK(comparison.copies == 0);
}

TEST_CASE("small gradients are lost in fp16 without a scale, and kept with one") {
    // The step of SGD is the gradient itself: parameters after one step against the reference, where the
    // gradients of most are below 6e-8 before they are scaled.
    schedule::Plan plan = half_plan();
    plan.optimizer = {};
    plan.optimizer.kind = schedule::OptimizerKind::sgd;
    plan.optimizer.learning_rate = 1;
    const model::ModelGraph graph = tiny::gpt(2);
    const TemporaryFolder folder;
    exec::RunOptions start;
    start.steps = 0;
    start.checkpoints.directory = folder.path;
    train(plan, graph, start);
    const auto difference = [&](float scale) {
        exec::RunOptions options;
        options.resumed = with_scaling(folder.path, {scale, 0, 0});
        const exec::ReferenceResult reference =
            exec::run_reference(graph, plan, tiny::data_of(graph), {1, options.seed});
        const exec::RunResult run = train(plan, graph, options);
        double worst = 0;
        for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
            std::vector<float> gradients = run.gradients[p];
            for (float& g : gradients) g /= scale;
            double largest = 0;
            for (const double g : reference.gradients[p]) largest = std::max(largest, std::abs(g));
            if (largest > 1e-7)
                worst = std::max(worst, exec::relative_difference(gradients, reference.gradients[p]));
        }
        return worst;
    };
    const double scaled = difference(65536), small = difference(0x1.0p-14f);
    CHECK(scaled < 1e-2);
    CHECK(small > 10 * scaled);
}

TEST_CASE("a step whose gradients overflow updates nothing on any rank, and halves the scale") {
    schedule::Plan plan = half_plan();
    plan.layout.pipeline = plan.layout.data = 2;
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
    const model::ModelGraph graph = tiny::gpt(4);
    const TemporaryFolder folder;
    exec::RunOptions options;
    options.steps = 2;
    options.checkpoints.directory = folder.path;
    const exec::RunResult before = train(plan, graph, options);
    CHECK(newest(folder.path)->manifest().loss_scaling == exec::LossScaling{65536, 2, 0});

    options.resumed = with_scaling(folder.path, {0x1.0p60f, 2, 0});
    options.first_step = 2;
    options.steps = 1;
    const exec::RunResult after = train(plan, graph, options);
    CHECK(after.parameters == before.parameters);
    CHECK(newest(folder.path)->manifest().loss_scaling == exec::LossScaling{0x1.0p59f, 0, 1});

    // Then it goes on as one that never saw that step: the count of updates is the optimizer's own.
    exec::RunOptions next;
    next.resumed = with_scaling(folder.path, {65536, 0, 1});
    next.first_step = 3;
    next.sample_offset = -plan.global_batch();  // the samples of step 2
    next.steps = 2;
    const exec::RunResult late = train(plan, graph, next);
    exec::RunOptions whole;
    whole.steps = 4;
    const exec::RunResult unbroken = train(plan, graph, whole);
    CHECK(late.parameters == unbroken.parameters);
}
