// Why a plan is not the best: shares that add up, and a verdict that knows the error.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "planner/why_not.h"
#include "tests/planner/questions.h"

namespace {

// BERT large: 16 heads.
struct Case {
    model::ModelGraph graph = load_graph("bert-large");
    planner::Target target = target_of("p4d.24xlarge", 1);

    schedule::Plan plan(int tensor, int micro_batch) const {
        schedule::Plan plan = target.base;
        plan.layout.tensor = tensor;
        plan.layout.data = 8 / tensor;
        plan.micro_batch = micro_batch;
        plan.micro_batches = 64 / (plan.layout.data * micro_batch);
        return plan;
    }
    planner::WhyNot ask(const schedule::Plan& plan, const schedule::Plan& best) const {
        core::Diagnostics diagnostics;
        const auto why =
            planner::why_not(graph, target.cluster, plan, best, sim::shipped_posterior(), diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(why.has_value());
        return *why;
    }
};

}  // namespace

TEST_CASE("why a plan is not the best: shares of its fields add up, and each is tried alone") {
    const Case c;
    schedule::Plan slow = c.plan(4, 1);
    slow.recompute = schedule::Recompute::full;
    const schedule::Plan fast = c.plan(1, 4);
    const planner::WhyNot why = c.ask(slow, fast);
    CHECK(why.verdict == planner::Verdict::slower);
    CHECK(why.is_exact);
    REQUIRE(why.changes.size() == 3);  // tensor, micro-batch, recomputation; data and micro-batches follow
    double sum = 0;
    for (const planner::PlanChange& change : why.changes) sum += change.share.value;
    CHECK(sum == Approx((why.best.step_time - why.plan.step_time).value).epsilon(1e-12));
    CHECK(why.difference_pct == Approx(100 * (why.plan.step_time / why.best.step_time - 1)));

    // Each change alone is the plan that differs in it, asked for by hand.
    for (const planner::PlanChange& change : why.changes) {
        REQUIRE(change.fields.size() == 1);
        const std::string& key = change.fields.front().key;
        schedule::Plan one = c.plan(key == "tensor_parallel" ? 1 : 4, key == "micro_batch" ? 4 : 1);
        if (key != "recompute") one.recompute = schedule::Recompute::full;
        INFO(key);
        REQUIRE(change.step_time.has_value());
        CHECK(change.step_time->value == Approx(c.ask(one, fast).plan.step_time.value).epsilon(1e-12));
    }
    REQUIRE(why.decisive.has_value());
    for (const planner::PlanChange& change : why.changes)
        CHECK(*why.changes[*why.decisive].step_time <= *change.step_time);
}

TEST_CASE("the best plan set against itself is equal, with no change and no error") {
    const Case c;
    const planner::WhyNot why = c.ask(c.plan(1, 4), c.plan(1, 4));
    CHECK(why.verdict == planner::Verdict::equal);
    CHECK(why.difference_pct == 0);
    CHECK(why.error_pct == 0);
    CHECK(why.changes.empty());
    CHECK_FALSE(why.decisive.has_value());
}

TEST_CASE("the verdict between two plans follows their difference and its error, in both directions") {
    const Case c;
    const planner::WhyNot there = c.ask(c.plan(8, 1), c.plan(1, 4)), back = c.ask(c.plan(1, 4), c.plan(8, 1));
    CHECK(there.verdict == planner::Verdict::slower);
    CHECK(back.verdict == planner::Verdict::faster);
    CHECK(there.error_pct == Approx(back.error_pct));
    // Two shardings of one plan differ by less than two runs of one plan do.
    schedule::Plan sharded = c.plan(1, 4);
    sharded.sharding = schedule::Sharding::optimizer;
    const planner::WhyNot near = c.ask(c.plan(1, 4), sharded);
    CHECK(near.difference_pct != 0);
    CHECK(std::abs(near.difference_pct) < near.error_pct);
    CHECK(near.verdict == planner::Verdict::equal);
    const double of_two_runs = 100 * std::expm1(sim::shipped_posterior().step.factor_80 * std::sqrt(2.0) *
                                                sim::shipped_posterior().step.row);
    CHECK(near.error_pct >= of_two_runs);
}

TEST_CASE("a plan that does not fit says how much is missing, and which change makes it fit") {
    const Case c;
    schedule::Plan large = c.plan(1, 8), small = large;
    large.attention = small.attention = model::AttentionImplementation::unfused;
    small.recompute = schedule::Recompute::full;
    // A device of a third of the memory, so that only one of the two fits.
    planner::Target target = c.target;
    core::Diagnostics diagnostics;
    const core::Bytes needed_large = c.ask(large, small).plan.peak_memory,
                      needed_small = c.ask(large, small).best.peak_memory;
    REQUIRE(needed_small < needed_large);
    target.cluster.instance.device.memory = core::Bytes((needed_large.value + needed_small.value) / 2);
    const auto asked =
        planner::why_not(c.graph, target.cluster, large, small, sim::shipped_posterior(), diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(asked.has_value());
    CHECK(asked->verdict == planner::Verdict::does_not_fit);
    const auto missing = planner::missing_memory(asked->plan);
    REQUIRE(missing.has_value());
    CHECK(missing->pipeline_rank == 0);
    CHECK(missing->needed == asked->plan.peak_memory);
    CHECK(missing->needed > missing->available);
    core::Bytes held;
    for (const auto& [what, bytes] : missing->held) held += bytes;
    CHECK(held.value == Approx(missing->needed.value).epsilon(1e-9));
    CHECK(missing->held.front().first == "activations");
    REQUIRE(asked->decisive.has_value());
    CHECK(asked->changes[*asked->decisive].fields.front().key == "recompute");
    CHECK(asked->changes[*asked->decisive].fits);
    CHECK_FALSE(planner::missing_memory(asked->best).has_value());
}

TEST_CASE("a plan that leaves devices idle differs in its data-parallel degree") {
    const Case c;
    schedule::Plan half = c.plan(1, 4);
    half.layout.data = 4;
    half.micro_batches = 64 / (4 * half.micro_batch);
    const planner::WhyNot why = c.ask(half, c.plan(1, 4));
    REQUIRE(why.changes.size() == 1);
    CHECK(why.changes.front().fields.front().key == "data_parallel");
    CHECK(why.changes.front().share.value == Approx((why.best.step_time - why.plan.step_time).value));
    CHECK(why.verdict == planner::Verdict::slower);
}
