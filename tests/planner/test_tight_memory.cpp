// Plans that fit only with another partition than the one that balances their stages.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/diagnostics.h"
#include "planner/partition/moves.h"
#include "planner/search.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

namespace {

using planner::Cuts;

// Every so many units a cut.
std::vector<Cuts> divisions(int stages, int units, int step) {
    std::vector<Cuts> all = {{0}};
    for (int cut = 1; cut < stages; ++cut) {
        std::vector<Cuts> longer;
        for (const Cuts& cuts : all)
            for (std::int32_t next = cuts.back() + step; next < units; next += step) {
                longer.push_back(cuts);
                longer.back().push_back(next);
            }
        all = std::move(longer);
    }
    return all;
}

sim::Evaluation evaluated(const model::ModelGraph& graph, const planner::Target& target, schedule::Plan plan,
                          Cuts cuts) {
    plan.partition.first_units = std::move(cuts);
    core::Diagnostics diagnostics;
    const std::optional<sim::Evaluation> evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
    REQUIRE(evaluation);
    return *evaluation;
}

struct Question {
    model::ModelGraph graph = load_graph("gpt2-medium", 512);  // tied embeddings of four layers' size
    planner::Target target = target_of("g4dn.12xlarge", 1);
    planner::SearchRequest request = small_request(16, 2);
    schedule::Plan plan;

    // Two ranks of a pipeline, two replicas, with so many stages a rank.
    Question(const std::string& order, int virtual_stages) {
        request.offload = schedule::Offload::none;
        request.limits.pipeline = {2};
        request.limits.tensor = {1};
        request.limits.micro_batch = {1};
        request.limits.schedules = {order};
        request.limits.sharding = {schedule::Sharding::none};
        request.limits.recompute = {schedule::Recompute::none};
        plan = target.base;
        plan.layout.pipeline = plan.layout.data = 2;
        plan.schedule = order;
        plan.virtual_stages = virtual_stages;
        plan.micro_batches = 8;
    }
    planner::SearchResult search() const {
        core::Diagnostics diagnostics;
        return planner::search_plans(graph, {target}, request, diagnostics);
    }
};

}  // namespace

TEST_CASE("where the balanced partition does not fit, the fastest of all that do is found") {
    Question question("1f1b", 1);
    question.request.most_virtual_stages = 1;
    const planner::SearchResult roomy = question.search();
    REQUIRE(roomy.plans.size() == 1);
    const int units = int(question.graph.units.size());
    double least = std::numeric_limits<double>::infinity();
    for (const Cuts& cuts : divisions(2, units, 1))
        least = std::min(least,
                         evaluated(question.graph, question.target, question.plan, cuts).peak_memory.value);
    // With a byte more than the leanest needs, and with less.
    core::Bytes& memory = question.target.cluster.instance.device.memory;
    CHECK(roomy.plans[0].evaluation.peak_memory.value > least * 1.01);
    memory = core::Bytes(least + 1);
    const planner::SearchResult tight = question.search();
    REQUIRE(tight.plans.size() == 1);
    CHECK(tight.account.is_proven_optimal);
    CHECK(tight.plans[0].evaluation.fits);
    CHECK(sum_of(tight.account) == tight.account.space);
    double fastest = std::numeric_limits<double>::infinity();
    for (const Cuts& cuts : divisions(2, units, 1)) {
        const sim::Evaluation evaluation = evaluated(question.graph, question.target, question.plan, cuts);
        if (evaluation.fits) fastest = std::min(fastest, evaluation.step_time.value);
    }
    CHECK(tight.plans[0].value == Approx(fastest));
    memory = core::Bytes(least * 0.99);
    const planner::SearchResult none = question.search();
    CHECK(none.plans.empty());
    CHECK(none.account.partitions.undecided == 0);  // of one stage a rank all were
}

TEST_CASE("where no plan fits with the stages balanced, one of several stages a rank is found that does") {
    for (const char* const order : {"1f1b-v", "zb-v"}) {
        INFO(order);
        Question question(order, 2);
        const planner::SearchResult roomy = question.search();
        REQUIRE(roomy.plans.size() == 1);
        const int units = int(question.graph.units.size());
        double least = std::numeric_limits<double>::infinity();
        for (const Cuts& cuts : divisions(4, units, 2))
            least = std::min(
                least, evaluated(question.graph, question.target, question.plan, cuts).peak_memory.value);
        const double balanced = roomy.plans[0].evaluation.peak_memory.value;
        CHECK(balanced > least * 1.02);
        question.target.cluster.instance.device.memory = core::Bytes((least + balanced) / 2);
        const planner::SearchResult tight = question.search();
        REQUIRE(tight.plans.size() == 1);
        CHECK(tight.account.evaluated == 0);  // of the space, where each has the balanced one
        CHECK(sum_of(tight.account) == tight.account.space);
        CHECK(evaluated(question.graph, question.target, question.plan,
                        tight.plans[0].plan.partition.first_units)
                  .fits);
        // Less than any of these needs: nothing is claimed of those between them.
        question.target.cluster.instance.device.memory = core::Bytes(least * 0.98);
        const planner::SearchResult none = question.search();
        CHECK(none.plans.empty());
        CHECK(none.account.partitions.undecided > 0);
    }
}

// What an optimizer keeps on hosts is the same whatever the partition: none is looked at where it is too
// much.
TEST_CASE("partitions are not looked at where hosts never have room for the optimizer") {
    Question question("1f1b", 1);
    question.request.most_virtual_stages = 1;
    question.plan.optimizer_offload = question.target.base.optimizer_offload = schedule::Offload::host;
    const int units = int(question.graph.units.size());
    core::Bytes least(std::numeric_limits<double>::infinity());
    for (const Cuts& cuts : divisions(2, units, 1))
        least = std::min(least, evaluated(question.graph, question.target, question.plan, cuts).host_memory);
    REQUIRE(least.value > 0);
    core::Bytes& memory = question.target.cluster.instance.host_memory;
    memory = least;
    const planner::SearchResult roomy = question.search();
    REQUIRE(roomy.plans.size() == 1);
    CHECK(roomy.plans[0].evaluation.host_memory <= least);
    memory = least * 0.8;  // tied embeddings, which two ranks keep, are a seventh of the model
    const planner::SearchResult none = question.search();
    CHECK(none.plans.empty());
    CHECK(none.account.partitions.excluded == 1);
    CHECK(none.account.partitions.walked == 0);
}
