// What smplan may choose, smexec runs: no plan of the search space is refused, and a sample of each space
// trains as the reference does.
#include <catch2/catch.hpp>

#include <limits>
#include <numeric>
#include <set>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "planner/search_space.h"
#include "tests/exec/tiny.h"

namespace {

// So many cores of this machine's kind, in nodes of two.
std::vector<schedule::Plan> space_of(const model::ModelGraph& graph, int ranks, int global_batch,
                                     const schedule::Plan& base,
                                     schedule::Offload offload = schedule::Offload::none) {
    cluster::Cluster cores;
    core::Diagnostics diagnostics;
    cores.instance = *cluster::load_instance("local-cpu", diagnostics);
    cores.instance.devices = 2;
    cores.nodes = ranks / 2;
    cores.instance.device.has_concurrent_streams =
        offload != schedule::Offload::none;  // offload is for devices with memory of their own
    return planner::legal_plans(
        graph, cores,
        {.global_batch = global_batch, .base = base, .most_virtual_stages = 3, .offload = offload});
}

schedule::Plan base_plan() {
    core::Diagnostics diagnostics;
    schedule::Plan plan = planner::default_plan(cluster::load_instance("local-cpu", diagnostics)->device);
    const schedule::Plan tiny = tiny::plan();
    plan.optimizer = tiny.optimizer;
    plan.gradient_bucket = tiny.gradient_bucket;
    return plan;
}

std::string refusal_of(const schedule::Plan& plan, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    schedule::check_plan(plan, graph, std::numeric_limits<int>::max(), nullptr, diagnostics);
    exec::check_runnable(plan, graph, diagnostics);
    return diagnostics.has_errors() ? core::format(diagnostics) : std::string();
}

struct Seen {
    std::set<std::string> schedules;
    int plans = 0, of_experts = 0, of_parts = 0, of_shards = 0, of_offload = 0, of_segments = 0;
    void add(const schedule::Plan& plan) {
        ++plans;
        schedules.insert(plan.schedule);
        of_experts += plan.layout.expert > 1;
        of_parts += plan.layout.context > 1;
        of_shards += plan.sharding != schedule::Sharding::none;
        of_segments += plan.passes_per_micro_batch() > 1;
        of_offload += plan.offload != schedule::Offload::none;
    }
};

// None is refused; `wanted` of them, evenly over the space, are run for a step beside the reference.
Seen run_space(const model::ModelGraph& graph, const std::vector<schedule::Plan>& plans, std::size_t wanted) {
    Seen seen;
    std::size_t stride = std::max<std::size_t>(1, plans.size() / std::max<std::size_t>(1, wanted));
    while (std::gcd(stride, 2 * 3 * 5 * 7) > 1)
        ++stride;  // axes repeat: nothing in common with their numbers of choices
    for (std::size_t i = 0; i < plans.size(); ++i) {
        INFO(graph.name << ", plan " << i << " of " << plans.size() << ":\n"
                        << core::to_toml(schedule::to_value(plans[i])));
        REQUIRE(refusal_of(plans[i], graph) == "");
        if (i % stride != 0 || !schedule::complete_partition(plans[i], graph)) continue;
        tiny::check_equal(tiny::compare(plans[i], graph, 1), 2e-5);
        seen.add(plans[i]);
    }
    return seen;
}

}  // namespace

TEST_CASE("whatever smplan may choose for ranks on CPUs, smexec runs as the reference does") {
    schedule::Plan base = base_plan();
    base.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    SECTION("GPT") {
        const model::ModelGraph graph = tiny::gpt(6, "dropout = 0.1\nattention_dropout = 0.1");
        const Seen seen = run_space(graph, space_of(graph, 4, 8, base), 180);
        CHECK(seen.plans >= 100);
        CHECK(seen.schedules.size() >= 8);
        CHECK(seen.of_segments >= 3);
        CHECK(seen.of_shards >= 20);
    }
    SECTION("GPT, activations offloaded") {
        const model::ModelGraph graph = tiny::gpt(6, "dropout = 0.1\nattention_dropout = 0.1");
        const Seen seen = run_space(graph, space_of(graph, 4, 8, base, schedule::Offload::host), 100);
        CHECK(seen.of_offload >= 60);
        CHECK(seen.schedules.size() >= 8);
    }
    SECTION("a mixture of experts, activations offloaded") {
        const model::ModelGraph graph = tiny::llama(6,
                                                    "experts = 4\nexperts_per_token = 2\nexpert_interval = "
                                                    "2\nauxiliary_loss = 0.1\ncapacity_factor = 1.0");
        CHECK(run_space(graph, space_of(graph, 4, 8, base, schedule::Offload::host), 60).of_offload >= 30);
    }
    SECTION("a mixture of experts with balance and capacity") {
        const model::ModelGraph graph = tiny::llama(6,
                                                    "experts = 4\nexperts_per_token = 2\nexpert_interval = "
                                                    "2\nauxiliary_loss = 0.1\ncapacity_factor = 1.0");
        const Seen seen = run_space(graph, space_of(graph, 4, 8, base), 150);
        CHECK(seen.plans >= 100);
        CHECK(seen.of_experts >= 10);
    }
    SECTION("an encoder and a decoder") {
        const model::ModelGraph graph = tiny::model_of(
            "family = 't5'\nhidden = 16\nffn = 24\nlayers = 2\ndecoder_layers = 2\nheads = 4\nhead_dimension "
            "= 4\nvocabulary = 30\n"
            "sequence_length = 10\ndecoder_sequence_length = 6\nrelative_buckets = 8\nrelative_distance = "
            "16\ndropout = 0.1");
        CHECK(run_space(graph, space_of(graph, 4, 8, base), 100).plans >= 80);
    }
}

TEST_CASE("samples that smplan divides over ranks, experts with them, are run by smexec") {
    // The search divides what has more tokens than this, or fewer samples than ranks, into parts of 1,024
    // tokens and more.
    const model::ModelGraph graph = tiny::model_of(
        "family = 'mixtral'\nhidden = 8\nffn = 6\nlayers = 1\nheads = 1\nkv_heads = 1\nvocabulary = "
        "11\nmax_positions = 2048\nsequence_length = 2048\n"
        "experts = 2\nexperts_per_token = 1\nauxiliary_loss = 0.1\ncapacity_factor = 1.0");
    const std::vector<schedule::Plan> plans = space_of(graph, 2, 1, base_plan());
    Seen all;
    const schedule::Plan* widest = nullptr;
    for (const schedule::Plan& plan : plans) {
        INFO(core::to_toml(schedule::to_value(plan)));
        REQUIRE(refusal_of(plan, graph) == "");
        all.add(plan);
        if (plan.layout.context == 2 && plan.layout.expert == 2) widest = &plan;
    }
    REQUIRE(all.of_parts > 0);
    REQUIRE(widest);
    INFO(core::to_toml(schedule::to_value(*widest)));
    tiny::check_equal(tiny::compare(*widest, graph, 1), 2e-5);
}

TEST_CASE("a plan that smexec refuses is found by these tests") {
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan base = base_plan();
    base.precision = {core::DataType::tf32, core::DataType::fp32, core::DataType::fp32, false};
    const std::vector<schedule::Plan> plans = space_of(graph, 2, 2, base);
    REQUIRE_FALSE(plans.empty());
    for (const schedule::Plan& plan : plans)
        CHECK(refusal_of(plan, graph).find("the plan in tf32") != std::string::npos);
}
