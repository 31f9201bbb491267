// Plans in fp8 through the whole CUDA backend without a GPU: casts by our kernels, products of octets by
// loops.
#include <catch2/catch.hpp>

#include <cmath>

#include "core/diagnostics.h"
#include "exec/cuda/runnable.h"
#include "model/operators/fp8_products.h"
#include "tests/exec_cuda/emulated_run.h"

namespace {

schedule::Plan fp8_plan() {
    schedule::Plan plan = tiny::plan();
    plan.precision = {core::DataType::fp8, core::DataType::bf16, core::DataType::bf16, true};
    plan.micro_batches = 2;
    return plan;
}

exec::RunResult train(const schedule::Plan& plan, const model::ModelGraph& graph, int steps,
                      const exec::BackendMaker& make_backend = {}) {
    schedule::Plan own = plan;
    own.partition = schedule::complete_partition(plan, graph).value();
    core::Diagnostics diagnostics;
    const schedule::Program program =
        schedule::lower(own, graph, schedule::make_schedule(own, diagnostics).value());
    exec::RunOptions options;
    options.steps = steps;
    options.keeps_state = true;
    options.time_limit = core::seconds(60);
    options.make_backend = make_backend;
    return exec::run(program, graph, tiny::data_of(graph), options);
}

double apart(const std::vector<double>& a, const std::vector<double>& b) {
    double most = 0;
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
    return most;
}

// Between both, the order of sums differs and where bf16 rounds: an element of an operand may then be rounded
// to fp8's other neighbour, 2^-3 away, one of a few hundred. Means over the tokens of a step stay within some
// thousandth, as both do of fp32 (tests/exec/test_float8.cpp).
constexpr double same = 1e-3, near_fp32 = 0x1p-4 / 20;

}  // namespace

TEST_CASE(
    "on an emulated GPU a GPT in fp8 has the losses of the CPU's fp8, near to those of fp32, by twelve "
    "products in fp8 a layer and micro-batch") {
    const auto machine = std::make_shared<emulated::Emulated>();
    const model::ModelGraph graph = tiny::gpt(2, "activation = 'gelu_tanh'\n");
    const schedule::Plan plan = fp8_plan();
    constexpr int steps = 3, layers = 2;
    const exec::RunResult gpu = train(plan, graph, steps, emulated::backend_on(machine)),
                          cpu = train(plan, graph, steps);
    const exec::ReferenceResult exact =
        exec::run_reference(graph, plan, tiny::data_of(graph), {steps, exec::RunOptions{}.seed});
    CHECK(apart(gpu.losses, cpu.losses) < same);
    CHECK(apart(gpu.losses, exact.losses) < near_fp32);
    CHECK(gpu.losses != exact.losses);
    // Four linear layers, forward and both gradients: planning multiplies nothing.
    CHECK(machine->in_fp8() == 4 * 3 * layers * plan.micro_batches * steps);
    // The epilogues go along with them: a GELU there and back. Gradients of biases are sums of gradients that
    // are not rounded.
    CHECK(machine->fused() == 2 * layers * plan.micro_batches * steps);

    // Gradients are sums of numbers that are off by up to 2^-3 each; through two layers and with what
    // cancels, less than twice that in the mean.
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
        INFO(graph.parameters[p].name);
        double squares = 0, differences = 0;
        for (std::size_t i = 0; i < gpu.gradients[p].size(); ++i) {
            squares += std::pow(exact.gradients[p][i], 2);
            differences += std::pow(static_cast<double>(gpu.gradients[p][i]) - exact.gradients[p][i], 2);
        }
        if (squares > 1e-8) CHECK(std::sqrt(differences / squares) < 0x1p-2);
    }
}

TEST_CASE("plans in fp8 run the same on emulated GPUs with every parallelism") {
    schedule::Plan plan = fp8_plan();
    const model::ModelGraph graph = tiny::gpt(2);
    constexpr int steps = 2;
    SECTION("layers that run again, twice to the same bits") {
        plan.recompute = schedule::Recompute::full;
        const exec::RunResult first = train(plan, graph, steps, emulated::backend()),
                              again = train(plan, graph, steps, emulated::backend());
        CHECK(again.losses == first.losses);
        CHECK(again.parameters == first.parameters);
    }
    SECTION("gradients of weights in instructions of their own") {
        plan.layout.pipeline = 2;
        plan.micro_batches = 4;
        plan.schedule = "zb-h1";
    }
    SECTION("sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
    SECTION("tensor parallelism: each rank scales its own share") {
        plan.layout.tensor = 2;
        CHECK(model::fp8_summary(graph, plan.cost_context()).find("products of 4 of 9") !=
              std::string::npos);  // of 24 and 8 columns, none
    }
    SECTION("gradients in fp32") { plan.precision.gradients = core::DataType::fp32; }
    const exec::RunResult gpu = train(plan, graph, steps, emulated::backend()),
                          cpu = train(plan, graph, steps);
    CHECK(apart(gpu.losses, cpu.losses) < same);
    CHECK(gpu.largest_copy_difference == 0);
}

TEST_CASE(
    "parameters in fp32 are cast to fp8 as they are, and where a machine has no fp8 product for a shape it "
    "is one in bf16") {
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan plan = fp8_plan(), half = plan;
    plan.precision = {core::DataType::fp8, core::DataType::fp32, core::DataType::fp32, false};
    half.precision = plan.precision;
    half.precision.compute = core::DataType::bf16;
    const exec::ReferenceResult exact =
        exec::run_reference(graph, plan, tiny::data_of(graph), {2, exec::RunOptions{}.seed});
    const auto with = std::make_shared<emulated::Emulated>(true, true),
               without = std::make_shared<emulated::Emulated>(true, false);
    CHECK(apart(train(plan, graph, 2, emulated::backend_on(with)).losses, exact.losses) < near_fp32);
    CHECK(with->in_fp8() > 0);
    CHECK(train(plan, graph, 2, emulated::backend_on(without)).losses ==
          train(half, graph, 2, emulated::backend()).losses);
    CHECK(without->in_fp8() == 0);
}

TEST_CASE(
    "room for octets is planned: that of the largest operand, and of gradients twice where the weight's "
    "gradient follows") {
    using schedule::Stream;
    const exec::cuda::RunPlan run = emulated::planned(fp8_plan(), tiny::gpt(2), 0);
    // Beside octets a few numbers and the largest magnitudes, 256 + 4096 bytes. Weights have 64 x 16 elements
    // at most, inputs and gradients 16 rows x 64.
    constexpr std::size_t head = 256 + 4096, copy = 1024;
    CHECK(run.scratch.at({Stream::compute, exec::cuda::low_weight_slot}) == head + copy);
    CHECK(run.scratch.at({Stream::compute, exec::cuda::low_input_slot}) == head + copy);
    CHECK(run.scratch.at({Stream::compute, exec::cuda::low_gradient_slot}) == head + 2 * copy);
    schedule::Plan plan = fp8_plan();
    plan.precision.compute = core::DataType::bf16;
    CHECK_FALSE(emulated::planned(plan, tiny::gpt(2), 0)
                    .scratch.contains({Stream::compute, exec::cuda::low_weight_slot}));
}

TEST_CASE("GPUs before Ada and Hopper refuse fp8 in words, and nobody stores parameters in it") {
    const model::ModelGraph graph = tiny::gpt(2);
    const auto refusal = [&](const schedule::Plan& plan, int major, int minor) {
        exec::cuda::DeviceReport device;
        device.available = true;
        device.name = "NVIDIA A100-SXM4-40GB";
        device.compute_major = major;
        device.compute_minor = minor;
        core::Diagnostics diagnostics;
        exec::cuda::check_runnable(plan, graph, device, diagnostics);
        return core::format(diagnostics);
    };
    const std::string message = refusal(fp8_plan(), 8, 0);
    CHECK(message.find("NVIDIA A100-SXM4-40GB has no matrix units for fp8: those begin with compute 8.9, its "
                       "own is 8.0") != std::string::npos);
    CHECK(message.find("set precision = \"bf16\"") != std::string::npos);
    for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {12, 0}})
        CHECK(refusal(fp8_plan(), major, minor).empty());
    schedule::Plan plan = fp8_plan();
    plan.precision.parameters = core::DataType::fp8;
    CHECK(refusal(plan, 9, 0).find("fp8 is a format of products") != std::string::npos);
}
