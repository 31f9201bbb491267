#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "planner/search.h"
#include "schedule/plan/explicit_order.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"
#include "tests/planner/questions.h"

using namespace planner;

namespace {

SearchResult search(bool searches_orders, Objective objective) {
    core::Diagnostics diagnostics;
    const model::ModelGraph graph = load_graph("gpt2-large");
    Target target = target_of("g4dn.12xlarge", 2);
    target.base.attention = model::AttentionImplementation::fused_softmax;
    SearchRequest request;
    request.objective = objective;
    request.global_batch = 8;
    request.tokens = 1e9;
    request.keep = 3;
    request.searches_orders = searches_orders;
    SearchResult result = search_plans(graph, {target}, request, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result.plans.size() >= 2);
    return result;
}

}  // namespace

TEST_CASE(
    "plans whose order was searched are ranked, costed and explained by the order found, and no bound of "
    "registered schedules is claimed for them") {
    const SearchResult registered = search(false, Objective::speed);
    for (const Objective objective : {Objective::speed, Objective::time_to_train, Objective::cost}) {
        const SearchResult result = search(true, objective);
        const RankedPlan& first = result.plans.front();
        // On this slow network an order of its own is faster: the test is of that case.
        REQUIRE(first.order.has_value());
        CHECK(schedule::is_explicit_order(first.plan.schedule));
        CHECK(first.evaluation.step_time < registered.plans.front().evaluation.step_time);
        for (std::size_t i = 0; i < result.plans.size(); ++i) {
            const RankedPlan& plan = result.plans[i];
            INFO("plan " << i << ": " << plan.why);
            CHECK(!plan.order == !schedule::is_explicit_order(plan.plan.schedule));
            // 1e9 tokens in steps of 8 samples of 1024.
            REQUIRE((plan.training_time && plan.training_cost));
            CHECK(plan.training_time->value ==
                  Approx(plan.evaluation.step_time.value * std::ceil(1e9 / (8 * 1024.0))));
            CHECK(plan.training_cost->value == Approx((plan.evaluation.rate * *plan.training_time).value));
            CHECK(plan.value == Approx(objective == Objective::cost
                                           ? (plan.evaluation.rate * plan.evaluation.step_time).value
                                           : plan.evaluation.step_time.value));
            if (i > 0) CHECK(result.plans[i - 1].value <= plan.value);
            if (i > 0) CHECK_FALSE(result.plans[i - 1].plan == plan.plan);
            // Every plan is held against another's step as it is now.
            CHECK(plan.why.find(core::format(result.plans[i == 0 ? 1 : 0].evaluation.step_time)) !=
                  std::string::npos);
            CHECK(plan.why.find(core::format(plan.evaluation.step_time)) != std::string::npos);
        }
        CHECK(result.account.best_value == first.value);
        CHECK_FALSE(result.account.lower_bound);
        CHECK_FALSE(result.account.is_proven_optimal);
    }
    REQUIRE(registered.account.lower_bound.has_value());
    CHECK(registered.account.is_proven_optimal);
    CHECK(registered.account.lower_bound == registered.account.best_value);
}
