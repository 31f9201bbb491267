// Norms of queries and keys inside attention (Qwen3): what they are, their gradients, and trainings that
// equal the reference however heads, tokens and layers are divided.
#include <catch2/catch.hpp>

#include <cmath>

#include "core/random.h"
#include "exec/cpu/head_norms.h"
#include "tests/exec/tiny.h"

namespace {

model::ModelGraph qwen3(int layers, const std::string& more = "") {
    return tiny::llama(layers, "query_key_norm = 'per_head'\nepsilon = 1e-3\n" + more);
}

}  // namespace

TEST_CASE("a head is divided by its root mean square, others are left alone") {
    // Rows of 5: one element before, two heads of 2.
    const exec::cpu::HeadRows at{2, 5, 1, 2, 2, 0.0f};
    const std::vector<float> x = {7, 3, 4, 0, 2, 7, -1, 1, 6, 8}, scale = {1, 10};
    std::vector<float> y(10, -5.0f);
    exec::cpu::normalise_heads(at, x.data(), scale.data(), y.data());
    // (3, 4) has the mean square 25 / 2, (0, 2) has 2, (-1, 1) has 1, (6, 8) has 50.
    const double root = std::sqrt(12.5);
    const std::vector<double> expected = {-5,
                                          3 / root,
                                          40 / root,
                                          0,
                                          20 / std::sqrt(2.0),
                                          -5,
                                          -1,
                                          10,
                                          6 / std::sqrt(50.0),
                                          80 / std::sqrt(50.0)};
    for (std::size_t i = 0; i < 10; ++i) CHECK(y[i] == Approx(expected[i]));
}

TEST_CASE("gradients of norms of heads are the slopes of what they compute") {
    const exec::cpu::HeadRows at{3, 9, 1, 2, 4, 1e-3f};
    core::Random random(5);
    std::vector<float> x(27), scale(4), dy(27), dx(27), dscale(4);
    for (auto* const one : {&x, &scale, &dy})
        for (float& value : *one) value = static_cast<float>(random.normal());
    exec::cpu::normalise_heads_backward(at, x.data(), scale.data(), dy.data(), dx.data(), dscale.data());
    const auto value = [&] {  // of which dy is the gradient, outside of the heads zero
        std::vector<float> y(27);
        exec::cpu::normalise_heads(at, x.data(), scale.data(), y.data());
        double sum = 0;
        for (std::size_t i = 0; i < 27; ++i) sum += static_cast<double>(dy[i]) * y[i];
        return sum;
    };
    const auto slope = [&](float& at_which) {
        constexpr float step = 1e-2f;
        const float before = at_which;
        at_which = before + step;
        const double above = value();
        at_which = before - step;
        const double below = value();
        at_which = before;
        return (above - below) / (2 * step);
    };
    for (std::size_t i = 0; i < 27; ++i) CHECK(dx[i] == Approx(slope(x[i])).margin(2e-3));
    for (std::size_t i = 0; i < 4; ++i) CHECK(dscale[i] == Approx(slope(scale[i])).margin(2e-3));
}

TEST_CASE("a model with norms of queries and keys trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    SECTION("one rank, with both ways of attention") {
        plan.attention =
            GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
        tiny::check_equal(
            tiny::compare(plan, qwen3(2, GENERATE("", "head_dimension = 6", "attention_dropout = 0.1"))));
    }
    SECTION("tensor parallel: every rank has some of the heads, and all the scale") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
        tiny::check_equal(tiny::compare(plan, qwen3(2)));
    }
    SECTION("more ranks than heads of keys: the projection is gathered") {
        plan.layout.tensor = 4;
        tiny::check_equal(tiny::compare(plan, qwen3(2)));
    }
    SECTION("keys of other ranks' tokens") {
        plan.layout.data = plan.layout.context = 2;
        tiny::check_equal(tiny::compare(plan, qwen3(2)));
    }
    SECTION("keys of earlier segments") {
        plan.layout.pipeline = 2;
        plan.schedule = "seq1f1b";
        plan.schedule_parameters = schedule::SegmentParameters{2};
        tiny::check_equal(tiny::compare(plan, qwen3(4)));
    }
    SECTION("weight gradients later than input gradients, and recomputation") {
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE("zb-h1", "1f1b", "chimera");
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
        tiny::check_equal(tiny::compare(plan, qwen3(4)));
    }
    SECTION("sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
        tiny::check_equal(tiny::compare(plan, qwen3(2)));
    }
}

TEST_CASE("norms of queries and keys that no kernel computes are refused by name") {
    const auto refusal = [](const std::string& more) {
        core::Diagnostics diagnostics;
        exec::check_runnable(tiny::plan(), tiny::llama(2, more), diagnostics);
        return core::format(diagnostics);
    };
    using Catch::Contains;
    CHECK(refusal("query_key_norm = 'per_head'").empty());
    CHECK_THAT(refusal("query_key_norm = 'all_heads'"), Contains("over all heads together"));
    CHECK_THAT(refusal("query_key_norm = 'per_head'\nquery_key_norm_scales = 'own'"),
               Contains("without one scale for all heads"));
    CHECK_THAT(refusal("query_key_norm = 'per_head'\nquery_key_norm_kind = 'layer_norm'"),
               Contains("layer norms of queries and keys"));
    CHECK_THAT(refusal("query_key_norm = 'per_head'\nquery_key_norm_kind = 'layer_norm_without_shift'"),
               Contains("layer norms of queries and keys"));
}
