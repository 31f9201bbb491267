// LAMB (You et al., arXiv 1904.00962, algorithm 2): rate times ||x|| / ||u|| for each parameter, whatever its
// values and its state are divided over.
#include <catch2/catch.hpp>

#include <cmath>

#include "exec/cpu/kernels.h"
#include "exec/runtime/parameters.h"
#include "model/operators/cost.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

namespace {

schedule::Plan lamb_plan() {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::lamb;
    plan.optimizer.learning_rate = 0.02;
    plan.optimizer.weight_decay = 0.1;
    plan.optimizer.epsilon =
        1e-3;  // of the size of gradients: what rounds them is not magnified to the size of an update
    return plan;
}

model::ModelGraph mixtral(int layers) {
    return tiny::model_of("family = 'mixtral'\nhidden = 16\nffn = 12\nlayers = " + std::to_string(layers) +
                          "\nheads = 4\nkv_heads = 2\nvocabulary = 30\nmax_positions = 8\nsequence_length = "
                          "8\nexperts = 4\nexperts_per_token = 2");
}

std::vector<float> initial(const model::Parameter& parameter) {
    std::vector<float> values(static_cast<std::size_t>(model::element_count(parameter.shape)));
    exec::initialize(parameter, exec::RunOptions{}.seed,
                     exec::element_runs(parameter, exec::ParameterShare{}), values.data());
    return values;
}

// Parameters too: they are what the ratio changes.
void check_all_equal(const tiny::Comparison& comparison, double tolerance = 1e-5) {
    tiny::check_equal(comparison, tolerance);
    CHECK(comparison.parameters < tolerance);
}

}  // namespace

TEST_CASE("LAMB's kernels move a parameter by the rate times its norm, along its update") {
    // x = (3, 4), ||x|| = 5. In the first step the corrected moments are g and g^2, so that u = g / |g| = (1,
    // -1) without epsilon, and ||u||^2 = 2.
    const exec::cpu::Kernels& k = exec::cpu::kernels();
    exec::cpu::AdamStep step{};
    step.learning_rate = 0.1f;
    step.beta1 = 0.9f;
    step.beta2 = 0.99f;
    step.rest1 = 0.1f;
    step.rest2 = 0.01f;
    step.correction1 = 0.1f;
    step.correction2 = 0.01f;
    std::vector<float> x{3, 4}, first(2, 0.0f), second(2, 0.0f);
    std::vector<float> g{0.5f, -2.0f};
    double squares[2] = {};
    k.lamb_norms(2, step, g.data(), x.data(), first.data(), second.data(), squares);
    CHECK(squares[0] == Approx(25));
    CHECK(squares[1] == Approx(2));
    CHECK(first[1] == Approx(-0.2));
    CHECK(second[1] == Approx(0.04));
    k.lamb(2, step, static_cast<float>(0.1 * 5 / std::sqrt(2.0)), x.data(), first.data(), second.data());
    CHECK(x[0] == Approx(3 - 0.5 / std::sqrt(2.0)));
    CHECK(x[1] == Approx(4 + 0.5 / std::sqrt(2.0)));
    // With decay 0.5 the update is (1 + 1.5, -1 + 2) = (2.5, 1): decay is inside it, and so inside the norm.
    x = {3, 4};
    first = second = {0, 0};
    step.weight_decay = 0.5f;
    squares[0] = squares[1] = 0;
    k.lamb_norms(2, step, g.data(), x.data(), first.data(), second.data(), squares);
    CHECK(squares[1] == Approx(2.5 * 2.5 + 1));
    // A second step, g = (1, 1): m = 0.9 (0.05, -0.2) + 0.1 = (0.145, -0.08) over 1 - 0.81, v = 0.99 (0.0025,
    // 0.04) + 0.01 = (0.012475, 0.0496) over 1 - 0.9801.
    g = {1, 1};
    step.correction1 = 0.19f;
    step.correction2 = 0.0199f;
    squares[0] = squares[1] = 0;
    k.lamb_norms(2, step, g.data(), x.data(), first.data(), second.data(), squares);
    const double u0 = 0.145 / 0.19 / std::sqrt(0.012475 / 0.0199) + 1.5,
                 u1 = -0.08 / 0.19 / std::sqrt(0.0496 / 0.0199) + 2;
    CHECK(squares[1] == Approx(u0 * u0 + u1 * u1));
}

TEST_CASE("sums for LAMB's norms are right for every length, in every instruction set") {
    for (const char* set : {"generic", "avx2", "avx512"}) {
        const exec::cpu::Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        for (const std::int64_t count : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
            INFO(set << ", " << count << " elements");
            exec::cpu::AdamStep step{};
            step.correction1 = step.correction2 = 1;  // no moments but those of this gradient: u = g / |g|
            step.rest1 = step.rest2 = 1;
            std::vector<float> x(static_cast<std::size_t>(count)), g(x.size(), -3.0f), first(x.size()),
                second(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 10);
            double squares[2] = {}, expected = 0;
            for (const float value : x) expected += static_cast<double>(value * value);
            k->lamb_norms(count, step, g.data(), x.data(), first.data(), second.data(), squares);
            CHECK(squares[0] == Approx(expected).epsilon(1e-6));
            CHECK(squares[1] == Approx(static_cast<double>(count)).epsilon(1e-6));
        }
    }
}

TEST_CASE("the first step of LAMB is that of its paper, parameter by parameter") {
    // m / (1 - b1) = g and v / (1 - b2) = g^2: u = g / (|g| + epsilon) + decay x.
    schedule::Plan plan = lamb_plan();
    const model::ModelGraph graph = tiny::gpt(1);
    const exec::RunResult run = tiny::compare(plan, graph, 1).run;
    int adapted = 0, of_zeros = 0;
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
        const std::vector<float> x = initial(graph.parameters[p]);
        const double decay = graph.parameters[p].decays ? plan.optimizer.weight_decay : 0;
        std::vector<double> u(x.size());
        double values = 0, updates = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double g = static_cast<double>(run.gradients[p][i]), value = static_cast<double>(x[i]);
            u[i] = g / (std::abs(g) + plan.optimizer.epsilon) + decay * value;
            values += value * value;
            updates += u[i] * u[i];
        }
        const double ratio = values == 0 || updates == 0 ? 1 : std::sqrt(values) / std::sqrt(updates);
        (ratio == 1 ? of_zeros : adapted) += 1;
        double largest = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
            largest = std::max(
                largest, std::abs(static_cast<double>(run.parameters[p][i]) -
                                  (static_cast<double>(x[i]) - plan.optimizer.learning_rate * ratio * u[i])));
        INFO(graph.parameters[p].name << ", ratio " << ratio);
        CHECK(largest < 5e-7);  // parameters up to 2 in fp32
        // ||x' - x|| = rate ||x||, however large the gradient.
        double moved = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
            moved += std::pow(static_cast<double>(run.parameters[p][i]) - static_cast<double>(x[i]), 2);
        if (ratio != 1)
            CHECK(std::sqrt(moved) == Approx(plan.optimizer.learning_rate * std::sqrt(values)).epsilon(1e-4));
    }
    CHECK(adapted > 5);
    CHECK(of_zeros > 3);  // biases begin with zeros: their ratio is 1
}

TEST_CASE("LAMB trains as the reference does, however parameters and their state are divided") {
    schedule::Plan plan = lamb_plan();
    plan.optimizer.gradient_clipping = GENERATE(0.0, 0.05);
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1");  // tied embedding
    SECTION("one rank") {}
    SECTION("data, in every sharding") {
        plan.layout.data = GENERATE(2, 3);
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("hybrid sharding") {
        plan.layout.data = 4;
        plan.shard_degree = 2;
        plan.sharding = GENERATE(schedule::Sharding::optimizer, schedule::Sharding::gradients,
                                 schedule::Sharding::parameters);
    }
    SECTION("tensor, along sequences too") {
        plan.layout.tensor = GENERATE(2, 4);
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("pipeline 2 x tensor 2 x data 2, sharded, with the embedding on both ends") {
        plan.layout.pipeline = plan.layout.tensor = plan.layout.data = 2;
        plan.sharding =
            GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
        plan.layout.order = GENERATE(as<std::string>{}, "PDT", "TPD");
    }
    SECTION("both directions at once") {
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE(as<std::string>{}, "chimera", "dualpipe");
        plan.layout.tensor = GENERATE(1, 2);
    }
    SECTION("two stages a rank, gradients of weights apart") {
        plan.layout.pipeline = plan.virtual_stages = 2;
        plan.schedule = "zb-v";
    }
    SECTION("buckets of one parameter, and one bucket") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::optimizer;
        plan.gradient_bucket = GENERATE(core::bytes(4), core::bytes(1e9));
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    check_all_equal(tiny::compare(plan, graph, 3));
}

TEST_CASE("LAMB's norms count every expert once, however experts and shards divide the ranks") {
    schedule::Plan plan = lamb_plan();
    plan.layout.data = 4;
    plan.layout.expert = GENERATE(1, 2, 4);
    plan.sharding =
        GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
    plan.shard_degree = plan.sharding == schedule::Sharding::none ? 0 : GENERATE(2, 4);
    INFO(core::to_toml(schedule::to_value(plan)));
    check_all_equal(tiny::compare(plan, mixtral(2)));
    plan.layout.data = 2;
    if (plan.layout.expert > 2 || plan.shard_degree > 2) return;
    plan.layout.tensor = 2;
    plan.sequence_parallel = true;
    check_all_equal(tiny::compare(plan, mixtral(2)));
}

TEST_CASE("asynchronous schedules take LAMB's norms before each of their updates") {
    schedule::Plan plan = lamb_plan();
    plan.micro_batch = 1;
    plan.micro_batches = 7;
    plan.layout.pipeline = GENERATE(1, 3);
    plan.optimizer.learning_rate = 0.005;
    plan.schedule = GENERATE(as<std::string>{}, "pipedream", "pipedream-2bw");
    plan.schedule_parameters = schedule::GroupParameters{plan.schedule == "pipedream" ? 0 : 3};
    SECTION("alone") {}
    SECTION("tensor 2") { plan.layout.tensor = 2; }
    SECTION("data 2") { plan.layout.data = 2; }
    INFO(core::to_toml(schedule::to_value(plan)));
    check_all_equal(tiny::compare(plan, tiny::llama(4)), 2e-5);
}

TEST_CASE("in bf16 with fp32 master parameters LAMB follows the reference within its precision") {
    schedule::Plan plan = lamb_plan();
    plan.precision = {core::DataType::bf16, core::DataType::bf16,
                      GENERATE(core::DataType::bf16, core::DataType::fp32), true};
    plan.optimizer.gradient_clipping = GENERATE(0.0, 1.0);
    SECTION("one rank") {}
    SECTION("data, sharded") {
        plan.layout.data = 2;
        plan.sharding =
            GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
    }
    SECTION("tensor and pipeline") { plan.layout.pipeline = plan.layout.tensor = 2; }
    const tiny::Comparison comparison = tiny::compare(plan, tiny::gpt(4));
    CHECK(comparison.losses < 0.004);
    CHECK(comparison.losses > 1e-7);  // it does round
    CHECK(comparison.copies == 0);
}

TEST_CASE("losses stay with the reference over 20 steps of LAMB, and fall") {
    schedule::Plan plan = lamb_plan();
    plan.optimizer.epsilon = 1e-6;  // the paper's
    plan.optimizer.learning_rate = 0.01;
    plan.layout.data = plan.layout.tensor = 2;
    plan.sharding = schedule::Sharding::gradients;
    const tiny::Comparison comparison = tiny::compare(plan, tiny::gpt(2), 20);
    CHECK(comparison.losses < 1e-5);
    CHECK(comparison.run.losses.back() < comparison.run.losses.front());
}

TEST_CASE("LAMB's sums exchanged beside the computation give the same bits as in list order") {
    schedule::Plan plan = lamb_plan();
    plan.layout.data = 2;
    plan.layout.pipeline = GENERATE(1, 2);
    plan.sharding =
        GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
    const auto [in_order, beside] = tiny::in_order_and_beside(plan, tiny::gpt());
    CHECK(beside.losses == in_order.losses);
    CHECK(beside.parameters == in_order.parameters);
}
