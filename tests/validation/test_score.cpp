#include <catch2/catch.hpp>

#include "validation/score.h"

using validation::PredictionStatus;

namespace {

validation::ScoredRow row(const char* id, const char* group, double predicted, double measured,
                          PredictionStatus status = PredictionStatus::ok) {
    validation::ScoredRow r;
    r.id = id;
    r.group = group;
    r.status = status;
    r.predicted = core::seconds(predicted);
    r.measured = core::seconds(measured);
    return r;
}

}  // namespace

TEST_CASE(
    "errors are averaged within a group first and over groups second, so that a large group does not drown a "
    "small one") {
    // Group a: errors 0.1, 0.3 -> 0.2, bias (0.1 - 0.3)/2 = -0.1, median 0.2, p95 = 0.1 + 0.95 * 0.2. Group
    // b: one row refused -> 1.
    const auto groups = validation::score_groups({row("a1", "a", 1.1, 1), row("a2", "a", 0.7, 1),
                                                  row("b1", "b", 5, 1, PredictionStatus::unsupported)});
    REQUIRE(groups.size() == 2);
    CHECK(groups[0].mape == Approx(0.2));
    CHECK(groups[0].bias == Approx(-0.1));
    CHECK(groups[0].median == Approx(0.2));
    CHECK(groups[0].p95 == Approx(0.29));
    CHECK(groups[0].worst_id == "a2");
    CHECK(groups[1].mape == Approx(1.0));
    CHECK(validation::macro_mape(groups) == Approx(0.6));
}

TEST_CASE("memory error counts only rows with a measured peak, and a missing prediction as 100 %") {
    auto a = row("a", "g", 1, 1);
    a.measured_peak = core::gibibytes(10);
    a.predicted_peak = core::gibibytes(12);
    auto b = row("b", "g", 1, 1, PredictionStatus::error);
    b.measured_peak = core::gibibytes(10);
    CHECK_FALSE(validation::memory_mape({row("c", "g", 1, 1)}));
    CHECK(*validation::memory_mape({a, b, row("c", "g", 1, 1)}) == Approx(0.6));
}

TEST_CASE("Spearman is 1 for the same order, -1 for the reverse, and shares ranks among ties") {
    CHECK(validation::spearman({1, 2, 3}, {10, 20, 40}) == Approx(1));
    CHECK(validation::spearman({1, 2, 3}, {3, 2, 1}) == Approx(-1));
    CHECK(validation::spearman({1, 1, 1}, {1, 2, 3}) == 0);
    // Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5.
    CHECK(validation::spearman({1, 2, 2, 3}, {1, 2, 3, 4}) == Approx(4.5 / std::sqrt(4.5 * 5)));
}

TEST_CASE("regret is what following the prediction costs over the best plan measured") {
    const auto score = validation::score_sweep("s", {{1.0, 12}, {1.1, 10}, {2.0, 20}});
    CHECK(score.regret == Approx(0.2));
    CHECK(score.spearman == Approx(0.5));  // ranks 0 1 2 against 1 0 2: 1 - 6 * 2 / (3 * 8)
}
