// Memory as the simulator predicts it: how it moves with the plan, where a plan fails, and what an
// explanation adds up to.
#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>

#include "core/diagnostics.h"
#include "model/load.h"
#include "model/model_graph.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "tests/cluster/instances.h"

namespace {

model::ModelGraph gpt(int layers, int sequence) {
    core::Diagnostics diagnostics;
    core::Value table;
    table["family"] = "gpt";
    table["name"] = "gpt";
    table["layers"] = layers;
    table["hidden"] = 512;
    table["heads"] = 8;
    table["vocabulary"] = 8192;
    table["sequence_length"] = sequence;
    auto graph = model::load_model(table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

sim::Evaluation memory_of(const model::ModelGraph& graph, const schedule::Plan& plan,
                          const cluster::Cluster& cluster) {
    core::Diagnostics diagnostics;
    const auto evaluation = sim::evaluate(graph, cluster, plan, diagnostics, {.memory_only = true});
    INFO(core::format(diagnostics));
    REQUIRE(evaluation);
    return *evaluation;
}

schedule::Plan plan_of(int data, int micro_batch) {
    schedule::Plan plan;
    plan.layout.data = data;
    plan.micro_batch = micro_batch;
    return plan;
}

}  // namespace

TEST_CASE(
    "memory grows with the micro-batch, the sequence and the layers, whatever is recomputed or sharded") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    for (const schedule::Recompute recompute :
         {schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full})
        for (const schedule::Sharding sharding :
             {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters})
            for (const char* framework : {"", "megatron-lm-2021", "pytorch-fsdp", "deepspeed-2021"}) {
                INFO(schedule::name_of(recompute)
                     << ", " << schedule::name_of(sharding) << ", " << framework);
                const auto peak = [&](int layers, int sequence, int micro_batch) {
                    schedule::Plan plan = plan_of(8, micro_batch);
                    plan.recompute = recompute;
                    plan.sharding = sharding;
                    plan.framework = framework;
                    return memory_of(gpt(layers, sequence), plan, cluster).peak_memory;
                };
                const core::Bytes base = peak(4, 512, 4);
                CHECK(peak(4, 512, 8) > base);
                CHECK(peak(4, 1024, 4) > base);
                CHECK(peak(8, 512, 4) > base);
            }
}

TEST_CASE("sums of gradients are as wide whatever the plan calls them, and a share where they are divided") {
    const model::ModelGraph graph = gpt(8, 512);
    const auto parameters = static_cast<double>(model::trained_parameter_count(graph));
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const auto gradients = [&](const char* framework, core::DataType type, schedule::Sharding sharding) {
        schedule::Plan plan = plan_of(8, 4);
        plan.framework = framework;
        plan.sharding = sharding;
        plan.precision.gradients = type;
        return memory_of(graph, plan, cluster).memory.front().gradients.value;
    };
    using core::DataType, schedule::Sharding;
    // Bytes a parameter: PyTorch has what the plan says; Megatron-LM sums in fp32, in the place of the
    // products' own; DeepSpeed's BF16_Optimizer beside these.
    for (const auto& [framework, in_bf16, in_fp32] :
         {std::tuple{"", 2, 4}, {"megatron-lm", 4, 4}, {"megatron-lm-2021", 4, 4}, {"deepspeed", 6, 6}}) {
        INFO(framework);
        CHECK(gradients(framework, DataType::bf16, Sharding::none) ==
              Approx(in_bf16 * parameters).epsilon(0.01));
        CHECK(gradients(framework, DataType::fp32, Sharding::none) ==
              Approx(in_fp32 * parameters).epsilon(0.01));
        const double beside = gradients(framework, DataType::bf16, Sharding::parameters) -
                              gradients("", DataType::bf16, Sharding::parameters);
        CHECK(beside == Approx((in_bf16 - 2) * parameters / 8).epsilon(0.02).margin(1));
    }
}

TEST_CASE("a shard degree divides the state that it shards, and recomputation never saves more") {
    const model::ModelGraph graph = gpt(4, 512);
    const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
    const schedule::StateFootprint whole = schedule::state_footprint(graph, all, plan_of(8, 1));
    for (const int degree : {2, 4, 8}) {
        schedule::Plan plan = plan_of(8, 1);
        plan.shard_degree = degree;
        plan.sharding = schedule::Sharding::optimizer;
        CHECK(schedule::state_footprint(graph, all, plan).optimizer.value ==
              Approx(whole.optimizer.value / degree));
        CHECK(schedule::state_footprint(graph, all, plan).gradients == whole.gradients);
        plan.sharding = schedule::Sharding::parameters;
        CHECK(schedule::state_footprint(graph, all, plan).parameters.value ==
              Approx(whole.parameters.value / degree));
        CHECK(schedule::state_footprint(graph, all, plan).gradients.value ==
              Approx(whole.gradients.value / degree));
    }
    for (const auto attention :
         {model::AttentionImplementation::unfused, model::AttentionImplementation::flash}) {
        core::Bytes saved[3];
        for (const schedule::Recompute recompute :
             {schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full}) {
            schedule::Plan plan = plan_of(1, 4);
            plan.attention = attention;
            plan.recompute = recompute;
            saved[static_cast<int>(recompute)] = schedule::activation_footprint(graph, all, plan).saved;
        }
        CHECK(saved[1] <= saved[0]);
        CHECK(saved[2] <= saved[1]);
    }
}

TEST_CASE("kernels' workspace only adds to transients") {
    const model::ModelGraph graph = gpt(2, 512);
    const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
    const schedule::Plan plan = plan_of(1, 2);
    const schedule::ActivationFootprint bare = schedule::activation_footprint(graph, all, plan),
                                        with = schedule::activation_footprint(graph, all, plan,
                                                                              model::WorkspaceRules{});
    CHECK(with.saved == bare.saved);
    CHECK(with.forward_transient >= bare.forward_transient);
    CHECK(with.backward_transient >= bare.backward_transient);
    // The loss: an fp32 copy of 2 x 512 x 8192 logits beside what is saved.
    CHECK(with.backward_transient.value >= 4.0 * 2 * 512 * 8192);
}

TEST_CASE("in a ring kernels hold what every piece found until all are merged") {
    const model::ModelGraph graph = gpt(1, 512);
    model::CostContext context;
    context.micro_batch = 2;
    context.context_parallel = 4;
    context.context_communication = model::ContextCommunication::ring;
    for (const std::int32_t o : core::indices(graph.operators)) {
        const model::Operator& op = graph.operators[o];
        if (op.kind != model::OperatorKind::attention) continue;
        // A rank has 2 x 128 tokens. Four results in bf16 with a sum in fp32 for every head, and keys and
        // values of two ranks beside those of the piece and of the next.
        const double rows = 2 * 128, heads = double(op.attributes.heads),
                     hidden = heads * double(op.attributes.head_dimension);
        const auto held = [&](model::Phase phase) {
            return model::kernel_workspace(graph, model::OperatorId(o), phase, context, {}).value;
        };
        CHECK(held(model::Phase::forward) == 4 * rows * (2 * hidden + 4 * heads) + 2 * rows * 2 * hidden * 2);
        // The queries' gradient in fp32 and row sums, and one piece's gradients of queries, keys and values.
        CHECK(held(model::Phase::backward_input) == rows * (4 * hidden + 4 * heads) + rows * 3 * hidden * 2);
        context.context_communication = model::ContextCommunication::all_gather;
        CHECK(held(model::Phase::forward) == 0);
        return;
    }
    FAIL("there is an attention");
}

TEST_CASE("operator-level recomputation keeps attention and every other product of a layer") {
    constexpr double hidden = 512, heads = 8, kv_heads = 2, ffn = 1024, tokens = 2 * 256;
    const auto saved = [](int layers, bool keeps_products, schedule::Recompute recompute) {
        core::Diagnostics diagnostics;
        core::Value table;
        table["family"] = "llama";
        table["name"] = "llama";
        table["layers"] = layers;
        table["hidden"] = int(hidden);
        table["heads"] = int(heads);
        table["kv_heads"] = int(kv_heads);
        table["ffn"] = int(ffn);
        table["vocabulary"] = 8192;
        table["sequence_length"] = 256;
        const auto graph = model::load_model(table, {}, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(graph);
        schedule::Plan plan = plan_of(1, 2);
        plan.attention = model::AttentionImplementation::flash;
        plan.recompute = recompute;
        plan.precision.compute = core::DataType::bf16;
        const model::OperatorRange all{0, static_cast<std::int32_t>(graph->operators.size())};
        return schedule::activation_footprint(*graph, all, plan,
                                              {.recomputes_alternate_products = keeps_products})
            .saved.value;
    };
    const auto of_a_layer = [&](bool keeps_products, schedule::Recompute recompute) {
        return saved(3, keeps_products, recompute) - saved(2, keeps_products, recompute);
    };
    // In bf16 the layer's input, q, v, the output of attention, the gate and the last product; in fp32 the
    // logarithms of attention's sums. k, the output product and the other half of the MLP run again.
    const double kept = 2 * (hidden + hidden + hidden * kv_heads / heads + hidden + ffn + hidden) + 4 * heads;
    CHECK(of_a_layer(true, schedule::Recompute::selective) == Approx(kept * tokens));
    CHECK(of_a_layer(true, schedule::Recompute::full) == Approx(2 * hidden * tokens));
    CHECK(of_a_layer(true, schedule::Recompute::selective) <
          of_a_layer(false, schedule::Recompute::selective));
}

TEST_CASE("a communicator's buffers follow its channels") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    CHECK(sim::communicator_memory(cluster, {0}).value == 0);
    // Inside the node: twelve NVLinks, two channels each, three connections of 9.2 MiB: 662 MiB, at most what
    // the profile states.
    CHECK(sim::communicator_memory(cluster, {0, 1, 2, 3, 4, 5, 6, 7}) ==
          cluster.instance.device.further_communicator_memory);
    // One rank a node: half a network card, at least one: two channels of four connections.
    CHECK(core::to_gibibytes(sim::communicator_memory(cluster, {0, 8})) * 1024 == Approx(2 * 4 * 9.2));
}

TEST_CASE("a plan that does not fit fails where its activations have used up the room") {
    const model::ModelGraph graph = gpt(16, 2048);
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    schedule::Plan plan = plan_of(8, 1);
    while (memory_of(graph, plan, cluster).fits) plan.micro_batch *= 2;
    const sim::Evaluation evaluation = memory_of(graph, plan, cluster);
    REQUIRE(evaluation.out_of_memory.has_value());
    const sim::OutOfMemory& failure = *evaluation.out_of_memory;
    CHECK(failure.needed > failure.available);
    CHECK(failure.needed - failure.available <=
          failure.asked * 1.05);  // the allocation before it still fitted
    CHECK(failure.needed <= evaluation.peak_memory);
    CHECK(failure.micro_batch == 0);
    CHECK(failure.operators.has_value());
    CHECK(sim::sum(failure.held).value == Approx(failure.needed.value));
}

TEST_CASE("an explanation accounts for the compute of the critical rank and finds what the step rests on") {
    const model::ModelGraph graph = gpt(8, 512);
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    schedule::Plan plan = plan_of(8, 8);
    plan.sharding = schedule::Sharding::parameters;
    core::Diagnostics diagnostics;
    const auto evaluation = sim::evaluate(graph, cluster, plan, diagnostics, {.keeps_timeline = true});
    REQUIRE(evaluation);
    const sim::Explanation explanation = sim::explain(*evaluation, graph, cluster, plan);
    core::Seconds device;
    for (const sim::OperatorTime& time : explanation.operators) device += time.sum();
    CHECK(device.value > 0);
    CHECK(device <= explanation.compute_busy * (1 + 1e-9));
    for (const sim::CommunicationShare& time : explanation.communications) {
        CHECK(time.exposed.value >= -1e-12);
        CHECK(time.exposed <= time.busy * (1 + 1e-9));
        CHECK(time.links == "inside a node");
    }
    REQUIRE_FALSE(explanation.constants.empty());
    REQUIRE_FALSE(explanation.figures.empty());
    CHECK(explanation.constants.size() == sim::named_constants().size());
    for (std::size_t i = 1; i < explanation.figures.size(); ++i)
        CHECK(std::abs(explanation.figures[i].step_change) <=
              std::abs(explanation.figures[i - 1].step_change));
    for (const sim::Influence& figure : explanation.figures)  // a faster device never takes longer
        if (figure.name == "device.precision.bf16" || figure.name == "device.memory_bandwidth")
            CHECK(figure.step_change <= 0);
}
