#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/value.h"
#include "model/operators/cost.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "sim/report/breakdown.h"
#include "sim/report/report.h"
#include "sim/report/timeline_columns.h"
#include "sim/report/trace.h"
#include "tests/cluster/instances.h"
#include "tests/core/sanitizers.h"
#include "tests/model/catalogue.h"

namespace {

schedule::Plan plan_of(int data, int tensor, int pipeline, int micro_batches, const char* order = "1f1b") {
    schedule::Plan plan;
    plan.layout = {data, tensor, pipeline, "PDT"};
    plan.micro_batches = micro_batches;
    plan.schedule = order;
    return plan;
}

sim::Evaluation evaluate(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                         const schedule::Plan& plan, sim::EvaluateOptions options = {}) {
    core::Diagnostics diagnostics;
    std::optional<sim::Evaluation> evaluation = sim::evaluate(graph, cluster, plan, diagnostics, options);
    INFO(core::format(diagnostics));
    REQUIRE(evaluation.has_value());
    return *evaluation;
}

}  // namespace

TEST_CASE(
    "a plan whose framework gathers once in pipelines is priced with parameters whole through the step") {
    // torchtitan's profile says so, FSDP's does not. 2 bytes a parameter of a stage are then held whole, not
    // a fourth of them, and gathered once, not for every micro-batch.
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const auto evaluated = [&](const char* framework, int pipeline, schedule::Sharding sharding) {
        schedule::Plan plan = plan_of(8 / pipeline, 1, pipeline, 8);
        plan.framework = framework;
        plan.sharding = sharding;
        plan.precision = {.compute = core::DataType::bf16,
                          .parameters = core::DataType::bf16,
                          .gradients = core::DataType::bf16,
                          .has_master_parameters = true};
        return evaluate(graph, cluster, plan);
    };
    const auto says_so = [](const sim::Evaluation& evaluation) {
        return std::ranges::any_of(evaluation.assumptions, [](const std::string& line) {
            return line.find("gathers parameters once a step in pipelines") != std::string::npos;
        });
    };
    using schedule::Sharding;
    const sim::Evaluation once = evaluated("torchtitan", 2, Sharding::parameters),
                          whole = evaluated("torchtitan", 2, Sharding::optimizer),
                          every_time = evaluated("pytorch-fsdp", 2, Sharding::parameters);
    CHECK(once.step_time.value == whole.step_time.value);
    CHECK(once.peak_memory.value == whole.peak_memory.value);
    CHECK(says_so(once));
    CHECK_FALSE(says_so(whole));
    CHECK_FALSE(says_so(every_time));
    // Half of the 124 million parameters and at least three quarters of their 2 bytes, against gathered
    // layers.
    CHECK(once.memory.front().parameters > every_time.memory.front().parameters * 1.5);
    // Without a pipeline it is FSDP as everybody knows it.
    const sim::Evaluation plain = evaluated("torchtitan", 1, Sharding::parameters);
    CHECK_FALSE(says_so(plain));
    CHECK(plain.memory.front().parameters <
          evaluated("torchtitan", 1, Sharding::optimizer).memory.front().parameters);
}

TEST_CASE("the parts of the breakdown add up to the step on every kind of plan, none negative") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    struct Case {
        int data, tensor, pipeline;
        schedule::Sharding sharding;
        schedule::Recompute recompute;
    };
    using schedule::Recompute, schedule::Sharding;
    for (const Case& c :
         {Case{1, 1, 1, Sharding::none, Recompute::none}, Case{16, 1, 1, Sharding::none, Recompute::none},
          Case{16, 1, 1, Sharding::parameters, Recompute::full},
          Case{8, 1, 1, Sharding::gradients, Recompute::selective},
          Case{1, 4, 4, Sharding::none, Recompute::selective},
          Case{4, 2, 2, Sharding::optimizer, Recompute::full}}) {
        schedule::Plan plan = plan_of(c.data, c.tensor, c.pipeline, 4);
        plan.sharding = c.sharding;
        plan.recompute = c.recompute;
        plan.sequence_parallel = c.tensor > 1;
        const sim::Evaluation evaluation = evaluate(graph, cluster, plan);
        REQUIRE(sim::sum(evaluation.breakdown).value == Approx(evaluation.step_time.value).epsilon(1e-12));
        for (const sim::BreakdownPart& part : sim::breakdown_parts())
            REQUIRE((evaluation.breakdown.*part.part).value >= 0);
        REQUIRE((evaluation.breakdown.recompute.value > 0) == (c.recompute != Recompute::none));
        REQUIRE((evaluation.breakdown.tensor_parallel.value > 0) == (c.tensor > 1));
        REQUIRE((evaluation.breakdown.bubble.value > 1e-6) == (c.pipeline > 1));
    }
}

TEST_CASE("throughput, FLOP/s and MFU follow from the step") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    schedule::Plan plan = plan_of(8, 1, 1, 4);
    plan.micro_batch = 2;
    const sim::Evaluation evaluation = evaluate(graph, cluster, plan);
    REQUIRE(evaluation.samples_per_second == Approx(64 / evaluation.step_time.value));
    REQUIRE(evaluation.tokens_per_second == Approx(64 * 1024 / evaluation.step_time.value));
    const double flops = 3 * 64 * model::forward_flops_per_sample(graph).value;
    REQUIRE(evaluation.model_flops_per_gpu.value == Approx(flops / evaluation.step_time.value / 8));
    REQUIRE(evaluation.mfu == Approx(evaluation.model_flops_per_gpu.value / 312e12));
    REQUIRE(evaluation.hardware_flops_per_gpu.value == Approx(evaluation.model_flops_per_gpu.value));
    REQUIRE(core::to_dollars_per_hour(evaluation.rate) == Approx(21.957642));
}

TEST_CASE("full recomputation adds one forward of FLOPs at most and saves activations") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    schedule::Plan plan = plan_of(8, 1, 1, 1);
    plan.micro_batch = 4;
    const sim::Evaluation none = evaluate(graph, cluster, plan);
    plan.recompute = schedule::Recompute::full;
    const sim::Evaluation full = evaluate(graph, cluster, plan);
    REQUIRE(full.step_time > none.step_time);
    REQUIRE(full.peak_memory < none.peak_memory);
    const double ratio = full.hardware_flops_per_gpu / full.model_flops_per_gpu;
    REQUIRE(ratio > 1.15);
    REQUIRE(ratio <= 4.0 / 3 + 1e-9);
}

TEST_CASE("extrapolating in micro-batches equals the full simulation in time, breakdown and memory") {
    const model::ModelGraph graph = load_graph("gpt2");
    int extrapolated = 0, evaluated = 0;
    std::set<std::string> settled;  // schedules of which some step was extrapolated
    // A quick network and a slow one, on which transfers and reductions hold each other up.
    for (const char* instance : {"p4d.24xlarge", "g4dn.12xlarge"})
        for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules())
            for (const int pipeline : {1, 2, 4})
                for (const schedule::Sharding sharding :
                     {schedule::Sharding::none, schedule::Sharding::gradients,
                      schedule::Sharding::parameters}) {
                    if (is_sanitized && sharding == schedule::Sharding::gradients) continue;
                    const cluster::Cluster cluster = nodes_of(instance, 2);
                    const int micro_batches = 20 * pipeline + 1 - pipeline % 2;
                    schedule::Plan plan =
                        plan_of(8 / pipeline, 1, pipeline, micro_batches, order.name.c_str());
                    plan.sharding = sharding;
                    plan.precision.compute = plan.precision.parameters = plan.precision.gradients =
                        core::DataType::fp16;
                    plan.attention = model::AttentionImplementation::unfused;
                    for (int chunks : {1, 2}) {
                        plan.virtual_stages = chunks;
                        core::Diagnostics problems;
                        schedule::check_plan(plan, graph, cluster.device_count(), nullptr, problems);
                        if (problems.has_errors()) continue;
                        const sim::Evaluation whole = evaluate(graph, cluster, plan);
                        const sim::Evaluation line =
                            evaluate(graph, cluster, plan, {.most_micro_batches = 10 * pipeline});
                        INFO(instance << ' ' << order.name << " x" << chunks << ", p " << pipeline
                                      << ", sharding " << schedule::name_of(sharding));
                        ++evaluated;
                        if (line.is_extrapolated) settled.insert(order.name);
                        extrapolated += line.is_extrapolated;
                        REQUIRE(line.step_time.value == Approx(whole.step_time.value).epsilon(1e-9));
                        REQUIRE(line.peak_memory.value == Approx(whole.peak_memory.value).epsilon(1e-9));
                        for (const sim::BreakdownPart& part : sim::breakdown_parts())
                            REQUIRE(
                                std::abs((line.breakdown.*part.part - whole.breakdown.*part.part).value) <=
                                1e-8 * whole.step_time.value);
                        if (!line.is_extrapolated) continue;
                        REQUIRE(line.settled_at <= 10 * pipeline);
                        for (const int least : {line.settled_at, line.settled_at + 1}) {
                            const sim::Evaluation later =
                                evaluate(graph, cluster, plan,
                                         {.most_micro_batches = 10 * pipeline, .least_micro_batches = least});
                            REQUIRE(later.step_time.value == Approx(whole.step_time.value).epsilon(1e-9));
                            if (later.is_extrapolated) REQUIRE(later.settled_at >= line.settled_at);
                        }
                    }
                }
    WARN(extrapolated << " of " << evaluated << " steps were extrapolated");
    REQUIRE(extrapolated > evaluated / 3);
    for (const char* name : {"1f1b", "interleaved-1f1b", "zb-h1"}) CHECK(settled.contains(name));
}

TEST_CASE("memory alone agrees with the memory of a full evaluation of a serial rank, and needs no prices") {
    const model::ModelGraph graph = load_graph("gpt2");
    cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    cluster.instance.device.has_concurrent_streams = false;
    const schedule::Plan plan = plan_of(2, 1, 4, 8);
    const sim::Evaluation all = evaluate(graph, cluster, plan);
    const sim::Evaluation memory = evaluate(graph, cluster, plan, {.memory_only = true});
    REQUIRE(memory.memory.size() == 4);
    for (std::size_t i = 0; i < 4; ++i)
        REQUIRE(memory.memory[i].peak.value == Approx(all.memory[i].peak.value));
    REQUIRE(memory.step_time.value == 0);
}

TEST_CASE("a plan beyond memory is evaluated and says by how much it does not fit") {
    const model::ModelGraph graph = load_graph("gpt2-xl");
    const cluster::Cluster cluster = nodes_of("p3.2xlarge", 1);
    schedule::Plan plan = plan_of(1, 1, 1, 1);
    plan.precision.compute = plan.precision.parameters = plan.precision.gradients = core::DataType::fp16;
    plan.attention = model::AttentionImplementation::unfused;
    const sim::Evaluation evaluation = evaluate(graph, cluster, plan);
    REQUIRE_FALSE(evaluation.fits);  // 16 bytes a parameter of 1.56 billion: 23 GiB before any activation
    REQUIRE(core::to_gibibytes(evaluation.peak_memory) > 23);
    REQUIRE(evaluation.tightest.find("pipeline rank 0") == 0);
    REQUIRE(evaluation.step_time.value > 0);
}

TEST_CASE("Llama-2-70B on 16 p4d with tensor 8 and pipeline 8 reaches between 30 and 60 % MFU and fits") {
    const model::ModelGraph graph =
        load_graph(std::string(SOURCE_DIR) + "/scenarios/models/llama-2-70b.config.json");
    schedule::Plan plan = plan_of(2, 8, 8, 256);
    plan.sequence_parallel = true;
    plan.sharding = schedule::Sharding::optimizer;
    plan.recompute = schedule::Recompute::selective;
    const sim::Evaluation evaluation =
        evaluate(graph, nodes_of("p4d.24xlarge", 16), plan, {.most_micro_batches = 64});
    REQUIRE(evaluation.mfu > 0.3);
    REQUIRE(evaluation.mfu < 0.6);
    REQUIRE(evaluation.fits);
}

TEST_CASE("GPT-3 175B on 1,024 A100 comes near the 140 TFLOP/s a GPU that Megatron-LM published") {
    // Narayanan et al., SC21 (arXiv 2104.04473), table 2: 175B on 1,024 A100 80 GB, tensor 8, pipeline 16,
    // batch 1536: 140 TFLOP/s with full recomputation counted.
    const model::ModelGraph graph = load_graph("gpt3-175b");
    schedule::Plan plan = plan_of(8, 8, 16, 192);
    plan.recompute = schedule::Recompute::full;
    plan.attention = model::AttentionImplementation::fused_softmax;
    const sim::Evaluation evaluation =
        evaluate(graph, nodes_of("p4de.24xlarge", 128), plan, {.most_micro_batches = 64});
    const double published = 140e12;
    REQUIRE(evaluation.hardware_flops_per_gpu.value == Approx(published).epsilon(0.25));
}

TEST_CASE("two evaluations give the same report, JSON and trace to the byte") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    schedule::Plan plan = plan_of(2, 2, 2, 4);
    plan.sharding = schedule::Sharding::parameters;
    const auto texts = [&] {
        const sim::Evaluation e = evaluate(graph, cluster, plan, {.keeps_timeline = true});
        return sim::text_report(e, graph, cluster, plan) + core::to_json(sim::to_value(e, graph, plan)) +
               sim::chrome_trace(*e.program, graph, e.timeline, e.memory_timeline) +
               sim::timeline_columns(*e.program, graph,
                                     {{.timeline = e.timeline, .memory = e.memory_timeline}});
    };
    REQUIRE(texts() == texts());
}

TEST_CASE("a trace is JSON with a complete event for every instruction of every class") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const schedule::Plan plan = plan_of(1, 2, 2, 3);
    const sim::Evaluation e = evaluate(graph, cluster, plan, {.keeps_timeline = true});
    core::Diagnostics diagnostics;
    const std::optional<core::Value> trace = core::parse_json(
        sim::chrome_trace(*e.program, graph, e.timeline, e.memory_timeline), "trace", diagnostics);
    REQUIRE(trace.has_value());
    std::size_t complete = 0, instructions = 0;
    for (const core::Value& event : trace->find("traceEvents")->items())
        complete += event.find("ph")->string() == "X";
    for (const schedule::RankProgram& list : e.program->classes) instructions += list.instructions.size();
    REQUIRE(complete == instructions);
    // A computation names its operators: two stages, each a run of the graph's.
    std::map<std::int64_t, std::set<std::string>> of_stage;
    for (const core::Value& event : trace->find("traceEvents")->items()) {
        if (event.find("ph")->string() != "X" || !event.find("name")->string().starts_with("F")) continue;
        REQUIRE(event.find("args")->find("operators"));
        of_stage[event.find("args")->find("stage")->integer()].insert(
            event.find("args")->find("operators")->string());
    }
    REQUIRE(of_stage.size() == 2);
    CHECK(of_stage[0].begin()->find(graph.operators.front().name) == 0);
    CHECK(std::any_of(of_stage[1].begin(), of_stage[1].end(), [&](const std::string& operators) {
        return operators.find(graph.operators.back().name) != std::string::npos;
    }));
    std::size_t named = 0;  // in forward passes of one micro-batch: every operator once
    for (const auto& [stage, texts] : of_stage)
        for (const std::string& text : texts) {
            const std::size_t at = text.rfind(" (");
            named += at == std::string::npos ? 1 : std::stoul(text.substr(at + 2));
        }
    // But where tensor-parallel ranks add up: that is a collective.
    const auto exits = std::count_if(graph.operators.begin(), graph.operators.end(), [](const auto& op) {
        return op.kind == model::OperatorKind::parallel_exit;
    });
    CHECK(exits > 0);
    CHECK(named + static_cast<std::size_t>(exits) == graph.operators.size());
}

TEST_CASE("parameters tied over any pipeline ranks are reduced by those that hold a copy") {
    // T5 shares its embedding between encoder, decoder and head, and a table of relative positions between
    // the layers of each: copies lie on middle ranks too.
    const model::ModelGraph graph = load_graph("t5-small");
    for (int pipeline : {2, 3, 4, 6})
        for (const char* instance : {"p4d.24xlarge", "local-cpu"}) {
            schedule::Plan plan = plan_of(2, 1, pipeline, 4);
            plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
            plan.attention = model::AttentionImplementation::unfused;
            const sim::Evaluation evaluation =
                evaluate(graph, nodes_of(instance, std::string(instance) == "local-cpu" ? 1 : 2), plan);
            REQUIRE(evaluation.step_time.value > 0);
            REQUIRE(evaluation.memory.size() == static_cast<std::size_t>(pipeline));
        }
}

TEST_CASE("an order made from times says in a plan that the times are not the plan's") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const auto says = [&](const sim::Evaluation& evaluation) {
        return std::any_of(evaluation.assumptions.begin(), evaluation.assumptions.end(),
                           [](const std::string& line) {
                               return line.find("ordered for equal stages") != std::string::npos;
                           });
    };
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        if (entry.is_forward_only || entry.is_asynchronous) continue;
        INFO(entry.name);
        schedule::Plan plan = plan_of(2, 1, 4, 8, entry.name.c_str());
        plan.virtual_stages = entry.least_chunks;
        CHECK(says(evaluate(graph, cluster, plan)) == entry.orders_by_times);
        if (entry.least_chunks > 1 || entry.is_bidirectional) continue;
        plan.layout = {8, 1, 1, "PDT"};  // one stage has nothing to order
        CHECK_FALSE(says(evaluate(graph, cluster, plan)));
    }
}

TEST_CASE("the report says where a price is from, and ends no line with blanks") {
    const model::ModelGraph graph = load_graph("gpt2");
    const schedule::Plan plan = plan_of(8, 1, 1, 1);
    cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const auto report = [&] {
        return sim::text_report(evaluate(graph, cluster, plan), graph, cluster, plan);
    };
    const std::string listed = report();
    CHECK(listed.find("USD an hour (on-demand us-east-1, ") != std::string::npos);
    CHECK(listed.find(" \n") == std::string::npos);
    cluster.instance.prices = {{"on-demand", "", core::dollars_per_hour(30), "", "the scenario"}};
    CHECK(report().find("30 USD an hour (on-demand, from the scenario)") != std::string::npos);
}
