// Times that were measured of an exchange itself win over what links say.
#include <catch2/catch.hpp>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "schedule/plan/partition.h"
#include "schedule/program/exchange_signature.h"
#include "sim/evaluate.h"

TEST_CASE("a measured exchange takes the place of its price, and of no other's") {
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(
        "family = 'gpt'\nhidden = 64\nlayers = 2\nheads = 4\nvocabulary = 64\nmax_positions = 16\n"
        "sequence_length = 16\n",
        "test", diagnostics);
    const auto graph = model::load_model(*document, {}, diagnostics);
    const auto instance = cluster::load_instance("local-cpu", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE((graph && instance));
    cluster::Cluster here;
    here.instance = *instance;
    schedule::Plan plan;
    plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    plan.layout.data = 2;
    plan.micro_batch = 1;
    plan.micro_batches = 2;
    plan.gradient_bucket = core::bytes(1e9);
    plan.partition = *schedule::complete_partition(plan, *graph);
    sim::EvaluateOptions options;
    options.keeps_timeline = true;
    const auto step = [&] {
        const auto evaluation = sim::evaluate(*graph, here, plan, diagnostics, options);
        INFO(core::format(diagnostics));
        REQUIRE(evaluation);
        return *evaluation;
    };
    const sim::Evaluation before = step();
    REQUIRE(before.program);
    const schedule::Instruction* gradients = nullptr;
    for (const schedule::Instruction& one : before.program->classes[0].instructions)
        if (one.kind == schedule::InstructionKind::collective &&
            one.payload == schedule::PayloadKind::parameter_gradient &&
            (!gradients || one.bytes > gradients->bytes))
            gradients = &one;
    REQUIRE(gradients);
    const auto name = [&](core::Bytes bytes) {
        return schedule::collective_signature(gradients->collective, gradients->group, 0, {}, bytes);
    };
    CHECK(schedule::is_exchange(name(gradients->bytes)));
    here.instance.device.measured_operators.push_back({name(gradients->bytes), core::seconds(2), {}, {}});
    const double slow = step().step_time.value;
    // Two seconds in place of a price far below a millisecond's.
    CHECK(slow - before.step_time.value == Approx(2).margin(0.05));
    here.instance.device.measured_operators[0].forward = core::seconds(3);
    CHECK(step().step_time.value - slow == Approx(1).epsilon(1e-6));
    here.instance.device.measured_operators[0].signature = name(gradients->bytes + core::bytes(4));
    CHECK(step().step_time.value == Approx(before.step_time.value));
}
