// What is called proven, against everything: every plan of small spaces with every partition, and every move
// along one axis from the answers of larger ones.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "core/diagnostics.h"
#include "core/random.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "schedule/plan/plan_file.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"
#include "tests/planner/questions.h"

using namespace planner;

namespace {

// A sample where time is short; all of them with `./run test --all`.
int cases(int sample, int all) { return std::getenv("SMSIM_METAMORPHIC_SCENARIOS") ? all : sample; }

struct Question {
    model::ModelGraph graph;
    std::vector<Target> targets;
    SearchRequest request;
};

template <class T>
T one_of(core::Random& random, const std::vector<T>& values) {
    return values[random.below(values.size())];
}

// A few layers on two to four devices.
Question small_question(core::Random& random) {
    core::Value table = core::Value::table();
    const std::string family = one_of<std::string>(random, {"gpt", "bert", "llama", "mixtral"});
    table["family"] = family;
    table["name"] = "small " + family;
    table["layers"] = one_of<int>(random, {2, 3, 4});
    table["hidden"] = one_of<int>(random, {128, 256, 512});
    table["heads"] = 4;
    table["vocabulary"] = one_of<int>(random, {512, 8192, 32768});
    table["sequence_length"] = one_of<int>(random, {128, 512});
    if (family == "mixtral") {
        table["ffn"] = 512;
        table["experts"] = 4;
        table["experts_per_token"] = 2;
    }
    if (family == "llama") table["ffn"] = 1024;
    Question question{graph_of(table), {}, {}};
    question.targets.push_back(
        target_of(one_of<std::string>(random, {"g4dn.12xlarge", "p3.8xlarge", "g5.12xlarge"}), 1));
    question.request.global_batch = one_of<int>(random, {2, 4});
    question.request.most_virtual_stages = 2;
    question.request.offload = schedule::Offload::none;
    question.request.objective = random.below(4) == 0 ? Objective::memory : Objective::speed;
    if (random.below(3) == 0) {  // with the optimizer on the hosts as well
        question.targets.push_back(question.targets.front());
        question.targets.back().base.optimizer_offload = schedule::Offload::host;
    }
    if (random.below(3) == 0) {  // with the parameters there as well
        question.targets.push_back(question.targets.front());
        schedule::Plan& base = question.targets.back().base;
        base.optimizer_offload = base.parameter_offload = schedule::Offload::host;
        base.sharding = schedule::Sharding::parameters;
    }
    return question;
}

model::ModelGraph mixture() { return mixture_of({.layers = 8, .vocabulary = 32000}); }

// Of the objective; infinite where the plan is none or does not fit.
double value_of(const Question& question, const schedule::Plan& plan) {
    core::Diagnostics diagnostics;
    const cluster::Cluster& cluster = question.targets.front().cluster;
    schedule::check_plan(plan, question.graph, cluster.device_count(), nullptr, diagnostics);
    if (diagnostics.has_errors()) return std::numeric_limits<double>::infinity();
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(question.graph, cluster, plan, diagnostics, {.verifies = false});
    if (!evaluation || !evaluation->fits) return std::numeric_limits<double>::infinity();
    return question.request.objective == Objective::memory ? evaluation->peak_memory.value
                                                           : evaluation->step_time.value;
}

// The best of all partitions of the plan.
double best_partition(const Question& question, schedule::Plan plan) {
    const std::size_t units = question.graph.units.size();
    const auto stages = static_cast<std::size_t>(plan.stages());
    if (stages > units) return std::numeric_limits<double>::infinity();
    std::vector<bool> begins(units - 1, false);
    std::fill(begins.begin(), begins.begin() + static_cast<std::ptrdiff_t>(stages - 1), true);
    double best = std::numeric_limits<double>::infinity();
    do {
        plan.partition.first_units = {0};
        for (std::size_t u = 1; u < units; ++u)
            if (begins[u - 1]) plan.partition.first_units.push_back(static_cast<std::int32_t>(u));
        best = std::min(best, value_of(question, plan));
    } while (std::prev_permutation(begins.begin(), begins.end()));
    return best;
}

}  // namespace

TEST_CASE("the answer of a small space is the best of every plan with every partition") {
    core::Random random(18);
    for (int i = 0; i < cases(2, 20); ++i) {
        const Question question = small_question(random);
        INFO("case " << i << ": " << question.graph.name << " on "
                     << question.targets.front().cluster.instance.name << ", batch "
                     << question.request.global_batch);
        core::Diagnostics diagnostics;
        const SearchResult result =
            search_plans(question.graph, question.targets, question.request, diagnostics);
        REQUIRE_FALSE(result.plans.empty());
        REQUIRE(result.account.is_proven_optimal);
        double best = std::numeric_limits<double>::infinity();
        std::optional<schedule::Plan> which;
        for (const Target& target : question.targets)
            for (const schedule::Plan& plan :
                 legal_plans(question.graph, target.cluster,
                             {.global_batch = question.request.global_batch,
                              .base = target.base,
                              .most_virtual_stages = question.request.most_virtual_stages,
                              .offload = question.request.offload})) {
                const double value = best_partition(question, plan);
                if (value >= best) continue;
                best = value;
                which = plan;
            }
        INFO("better: " << core::to_toml(schedule::to_value(*which)));
        INFO("found: " << core::to_toml(schedule::to_value(result.plans.front().plan)));
        CHECK(result.plans.front().value == Approx(best).epsilon(1e-9));
    }
}

TEST_CASE("no move of a cut, shard degree, recomputation or micro-batch beats a plan that is called proven") {
    core::Random random(19);
    for (int i = 0; i < cases(4, 40); ++i) {
        const auto [name, tokens] = one_of<std::pair<std::string, int>>(random, {{"gpt2", 256},
                                                                                 {"bert-base", 128},
                                                                                 {"bert-large", 128},
                                                                                 {"resnet50", 0},
                                                                                 {"resnet152", 0},
                                                                                 {"t5-small", 0},
                                                                                 {"t5-base", 0},
                                                                                 {"mixture", 0}});
        Question question{name == "mixture" ? mixture() : load_graph(name, tokens), {}, {}};
        Target target;
        target.cluster =
            nodes_of(one_of<std::string>(random, {"g4dn.12xlarge", "p3.8xlarge", "p3.16xlarge"}), 1);
        // Half of them with little memory.
        if (random.below(2) == 0)
            target.cluster.instance.device.memory = core::gibibytes(one_of<double>(random, {4, 6, 8}));
        target.base = default_plan(target.cluster.instance.device);
        question.targets.push_back(target);
        question.request.global_batch = one_of<int>(random, {16, 32, 64});
        question.request.objective = i % 4 == 3 ? Objective::memory : Objective::speed;
        INFO("case " << i << ": " << name << " on " << target.cluster.instance.name << ", batch "
                     << question.request.global_batch);
        core::Diagnostics diagnostics;
        const SearchResult result =
            search_plans(question.graph, question.targets, question.request, diagnostics);
        if (result.plans.empty() || !result.account.is_proven_optimal) continue;
        const schedule::Plan& found = result.plans.front().plan;
        INFO(core::to_toml(schedule::to_value(found)));
        const double value = result.plans.front().value;
        const auto check = [&](const schedule::Plan& plan) {
            INFO("moved to " << core::to_toml(schedule::to_value(plan)));
            CHECK(value_of(question, plan) >= value * (1 - 1e-9));
        };
        check(found);
        for (std::size_t c = 1; c < found.partition.first_units.size(); ++c)
            for (const int by : {-1, 1}) {
                schedule::Plan moved = found;
                moved.partition.first_units[c] += by;
                check(moved);
            }
        if (found.offload != schedule::Offload::none)
            for (const int horizon :
                 loading_horizons(question.graph, target.cluster.instance.device, found)) {
                schedule::Plan moved = found;
                moved.activation_loading_horizon = horizon;
                check(moved);
            }
        if (found.sharding != schedule::Sharding::none)
            for (const int degree : {found.layout.data, target.cluster.instance.devices})
                if (degree <= found.layout.data) {
                    schedule::Plan moved = found;
                    moved.shard_degree = degree;
                    check(moved);
                }
        for (const auto recompute :
             {schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full}) {
            schedule::Plan moved = found;
            moved.recompute = recompute;
            check(moved);
        }
        for (const int factor : {2, 4})
            if (found.micro_batches % factor == 0) {
                schedule::Plan moved = found;
                moved.micro_batches /= factor;
                moved.micro_batch *= factor;
                check(moved);
            }
    }
}

TEST_CASE("a plan of many stages is no slower than with the partition that the simulator chooses for it") {
    struct Case {
        const char *model, *instance;
        std::int64_t sequence_length;
        int nodes, global_batch;
    };
    // In the second and third the chosen partition is far from one that balances the work, and better; in the
    // fourth, of the best plan, the latter takes longer than another plan.
    const Case of = GENERATE(
        Case{"llama-2-7b", "p4d.24xlarge", 4096, 4, 8}, Case{"gpt2-xl", "p3.16xlarge", 1024, 3, 128},
        Case{"gpt2-large", "g4dn.12xlarge", 1024, 3, 64}, Case{"llama-2-13b", "p3dn.24xlarge", 4096, 3, 8});
    CAPTURE(of.model, of.instance);
    const model::ModelGraph graph = load_graph(of.model, of.sequence_length);
    const std::vector<Target> targets = {target_of(of.instance, of.nodes)};
    SearchRequest request;
    request.global_batch = of.global_batch;
    core::Diagnostics diagnostics;
    const SearchResult result = search_plans(graph, targets, request, diagnostics);
    REQUIRE_FALSE(result.plans.empty());
    const RankedPlan& first = result.plans.front();
    REQUIRE(first.plan.stages() > first.plan.layout.pipeline);
    for (const RankedPlan& ranked : result.plans) {
        schedule::Plan plan = ranked.plan;
        plan.partition = {};
        const auto evaluation =
            sim::evaluate(graph, targets.front().cluster, plan, diagnostics, {.verifies = false});
        REQUIRE(evaluation);
        if (evaluation->fits) CHECK(evaluation->step_time.value >= first.value * (1 - 1e-9));
    }
}
