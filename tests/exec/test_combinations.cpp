// Random plans: whatever a planner may combine trains as one rank does.
#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>

#include "core/diagnostics.h"
#include "core/random.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

namespace {

template <class T>
T one_of(core::Random& random, std::initializer_list<T> choices) {
    return choices.begin()[random.below(choices.size())];
}

schedule::Plan random_plan(core::Random& random) {
    using namespace schedule;
    Plan plan = tiny::plan();
    plan.layout.order = one_of<const char*>(random, {"PDT", "TPD", "DPT"});
    plan.layout.pipeline = one_of(random, {1, 1, 2, 3, 4});
    plan.layout.tensor = one_of(random, {1, 1, 2});
    plan.layout.data = one_of(random, {1, 2, 2, 4});
    plan.virtual_stages = one_of(random, {1, 1, 2});
    std::vector<std::string> names;
    for (const PipelineSchedule& candidate : pipeline_schedules())
        if (!candidate.is_forward_only && !candidate.is_asynchronous) names.push_back(candidate.name);
    plan.schedule = names[random.below(names.size())];
    if (schedule::find_pipeline_schedule(plan.schedule)->cuts_sequences())
        plan.schedule_parameters = schedule::SegmentParameters{one_of(random, {0, 2, 4})};
    plan.micro_batch = one_of(random, {1, 2});
    plan.micro_batches = one_of(random, {1, 2, 4, 8});
    plan.sharding =
        one_of(random, {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters});
    if (plan.sharding != Sharding::none && plan.layout.data == 4) plan.shard_degree = one_of(random, {0, 2});
    plan.sequence_parallel = one_of(random, {false, true});
    plan.recompute = one_of(random, {Recompute::none, Recompute::selective, Recompute::full});
    if (plan.recompute == Recompute::full) plan.recompute_layers = one_of(random, {0, 1, 2});
    if (plan.recompute == Recompute::full && plan.recompute_layers == 0 && one_of(random, {false, true}))
        for (int stage = 0; stage < plan.stages(); ++stage)
            plan.recompute_layers_by_stage.push_back(one_of(random, {0, 1, 2}));
    if (plan.recompute == Recompute::selective)
        plan.recompute_modules = one_of<schedule::RecomputeModules>(
            random, {{RecomputeModule::core_attn},
                     {RecomputeModule::layernorm},
                     {RecomputeModule::activation},
                     {RecomputeModule::mlp},
                     {RecomputeModule::moe, RecomputeModule::layernorm},
                     {RecomputeModule::moe_act},
                     {RecomputeModule::moe, RecomputeModule::mlp, RecomputeModule::core_attn},
                     {RecomputeModule::core_attn, RecomputeModule::layernorm, RecomputeModule::activation}});
    plan.attention =
        one_of(random, {model::AttentionImplementation::flash, model::AttentionImplementation::unfused});
    plan.fused_cross_entropy = one_of(random, {false, true});
    plan.optimizer.learning_rate = 0.01;
    plan.optimizer.momentum = one_of(random, {0.0, 0.9});
    plan.optimizer.weight_decay = one_of(random, {0.0, 0.1});
    plan.optimizer.gradient_clipping = one_of(random, {0.0, 0.1});
    if (random.below(4) == 0) {
        plan.optimizer.kind = OptimizerKind::lamb;
        plan.optimizer.momentum = 0;
        plan.optimizer.epsilon =
            1e-3;  // of the size of gradients, so that their rounding is not magnified to that of an update
    }
    plan.gradient_bucket = core::bytes(one_of(random, {500.0, 3000.0, 1e6}));
    plan.overlaps_gradient_reduction = one_of(random, {false, true});
    plan.overlaps_parameter_gathering = one_of(random, {false, true});
    plan.collective = one_of<const char*>(random, {"auto", "ring", "tree"});
    plan.layout.context = one_of(random, {1, 1, 2});
    plan.layout.data *= plan.layout.context;
    plan.context_communication = one_of(
        random,
        {ContextCommunication::all_gather, ContextCommunication::all_to_all, ContextCommunication::ring});
    plan.layout.expert = one_of(random, {1, 1, 2, 4});
    plan.layout.has_whole_experts = plan.sequence_parallel && plan.layout.expert < 4 && random.below(2) == 0;
    plan.offload = one_of(random, {Offload::none, Offload::none, Offload::host, Offload::disk});
    plan.offload_bandwidth = core::gigabytes_per_second(1);
    plan.activation_loading_horizon = one_of(random, {1, 3, 8});
    if (random.below(4) == 0) {
        const core::DataType low = one_of(random, {core::DataType::bf16, core::DataType::fp16});
        plan.precision = {low, low, one_of(random, {low, core::DataType::fp32}), true};
    }
    plan.optimizer_offload = one_of(random, {Offload::none, Offload::none, Offload::host});
    if (random.below(4) == 0) {
        plan.parameter_offload = plan.optimizer_offload = Offload::host;
        plan.sharding = Sharding::parameters;
        plan.shard_degree = 0;
    }
    return plan;
}

}  // namespace

// SMSIM_SEED repeats a run; another seed every day otherwise, so that the sample grows with every run of the
// tests.
TEST_CASE("a random sample of plans trains as the reference does") {
    const char* given = std::getenv("SMSIM_SEED");
    const auto days =
        std::chrono::duration_cast<std::chrono::days>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : static_cast<std::uint64_t>(days);
    const model::ModelGraph gpt = tiny::gpt(6, "dropout = 0.1\nattention_dropout = 0.1"),
                            llama = tiny::llama(6), normed = tiny::llama(6, "query_key_norm = 'per_head'"),
                            mixture =
                                tiny::llama(6, "experts = 4\nexperts_per_token = 2\nexpert_interval = 2"),
                            balanced = tiny::llama(6,
                                                   "experts = 4\nexperts_per_token = 1\nexpert_interval = "
                                                   "3\nauxiliary_loss = 0.1\ncapacity_factor = 1.0");
    core::Random random(seed);
    int plans = 0, of_experts = 0, of_parts = 0, offloaded = 0, rounded = 0, of_several = 0, by_lamb = 0,
        on_hosts = 0, fetched = 0;
    for (int draw = 0; draw < 20000 && plans < 60; ++draw) {
        const schedule::Plan plan = random_plan(random);
        const model::ModelGraph& graph = one_of(random, {&gpt, &llama, &normed, &mixture, &balanced})[0];
        core::Diagnostics diagnostics;
        schedule::check_plan(plan, graph, std::numeric_limits<int>::max(), nullptr, diagnostics);
        if (diagnostics.has_errors() || plan.layout.ranks() > 16) continue;
        INFO("SMSIM_SEED=" << seed << ", draw " << draw << " on " << graph.family << ":\n"
                           << core::to_toml(schedule::to_value(plan)));
        const tiny::Comparison comparison = tiny::compare(plan, graph);
        if (plan.precision.compute == core::DataType::fp32) {
            tiny::check_equal(comparison, 2e-5);
        } else {  // eight bits; a mixture's token may also go to another expert
            CHECK(comparison.losses < 1e-2);
            CHECK(comparison.copies == 0);
            ++rounded;
        }
        ++plans;
        of_experts += plan.layout.expert > 1;
        of_parts += plan.layout.context > 1;
        offloaded += plan.offload != schedule::Offload::none;
        on_hosts += plan.updates_on_hosts();
        fetched += plan.keeps_parameters_on_hosts();
        by_lamb += plan.optimizer.kind == schedule::OptimizerKind::lamb;
        of_several +=
            (plan.layout.expert > 1) + (plan.layout.context > 1) + (plan.offload != schedule::Offload::none) >
            1;
    }
    WARN(plans << " plans of seed " << seed << ", " << of_experts << " with experts over ranks, " << of_parts
               << " with sequences over ranks, " << offloaded << " with offload, " << of_several
               << " with several of these, " << rounded << " in bf16, " << by_lamb << " by LAMB, " << on_hosts
               << " on hosts, " << fetched << " with their parameters");
    CHECK(plans == 60);
    CHECK(std::min({of_experts, of_parts, offloaded, rounded, by_lamb, on_hosts, fetched}) >= 3);
}

TEST_CASE("parts of layers that run again beside other axes train as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.recompute = schedule::Recompute::selective;
    plan.recompute_modules = GENERATE(
        schedule::RecomputeModules{schedule::RecomputeModule::layernorm},
        schedule::RecomputeModules{schedule::RecomputeModule::activation},
        schedule::RecomputeModules{schedule::RecomputeModule::core_attn, schedule::RecomputeModule::layernorm,
                                   schedule::RecomputeModule::activation},
        schedule::RecomputeModules{schedule::RecomputeModule::mlp, schedule::RecomputeModule::moe},
        schedule::RecomputeModules{schedule::RecomputeModule::layernorm, schedule::RecomputeModule::mlp,
                                   schedule::RecomputeModule::moe},
        schedule::RecomputeModules{schedule::RecomputeModule::shared_experts,
                                   schedule::RecomputeModule::activation},
        schedule::RecomputeModules{schedule::RecomputeModule::moe_act},
        schedule::RecomputeModules{schedule::RecomputeModule::moe, schedule::RecomputeModule::moe_act});
    SECTION("a split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE(as<std::string>{}, "1f1b", "zb-h1");
    }
    SECTION("tokens over tensor ranks, products in pieces") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
        plan.tensor_overlap = GENERATE(1, 2);
    }
    SECTION("sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
    SECTION("experts over ranks") { plan.layout.data = plan.layout.expert = 2; }
    SECTION("whole experts on tensor ranks") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = plan.layout.has_whole_experts = true;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(
        plan, tiny::mixtral(4, "experts_per_token = 2\nauxiliary_loss = 0.3\ncapacity_factor = 1.0")));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(4, "experts_per_token = 2\nshared_expert_ffn = 8")));
    if (plan.layout.expert_ranks() > 1) return;
    tiny::check_equal(tiny::compare(plan, tiny::gpt(4, "dropout = 0.1")));
    tiny::check_equal(tiny::compare(plan, tiny::llama(4)));
}

TEST_CASE(
    "evaluation in a pipeline has the reference's losses, drops nothing and leaves parameters as they are") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "forward-only";
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.3\nattention_dropout = 0.3");
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    SECTION("one rank") {}
    SECTION("pipeline with two virtual stages") {
        plan.layout.pipeline = plan.virtual_stages = 2;
        plan.layout.data = 2;
    }
    SECTION("tensor and sharded parameters") {
        plan.layout.tensor = plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
    const tiny::Comparison comparison = tiny::compare(plan, graph, 3);
    CHECK(comparison.losses < 1e-5);
    CHECK(comparison.parameters == 0);
}
