// What is known of a plan's memory without a simulation, against simulations.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/search_space.h"
#include "schedule/pipeline/registry.h"
#include "tests/planner/questions.h"

namespace {

// Peaks that bounds say and a simulation finds.
struct Compared {
    double bound = 0, peak = 0;
};
double median_share(std::vector<Compared> all) {
    const auto share = [](const Compared& one) { return one.bound / one.peak; };
    std::sort(all.begin(), all.end(),
              [&](const Compared& a, const Compared& b) { return share(a) < share(b); });
    return share(all[all.size() / 2]);
}

// A layer has 0.4 GiB of parameters, and keeps a fiftieth of that of a sample.
model::ModelGraph wide_model() {
    core::Value table;
    table["family"] = "llama";
    table["name"] = "wide";
    for (const auto& [key, value] : {std::pair{"hidden", 4096},
                                     {"ffn", 11008},
                                     {"layers", 8},
                                     {"heads", 32},
                                     {"vocabulary", 1024},
                                     {"sequence_length", 64},
                                     {"max_positions", 64}})
        table[key] = value;
    return graph_of(table);
}

bool goes_forward_first(const schedule::Plan& plan) {
    return schedule::find_pipeline_schedule(plan.schedule)->goes_forward_first;
}

}  // namespace

TEST_CASE("whole parameters of the unit at work, and what every micro-batch keeps, are known of the memory") {
    using schedule::Offload;
    std::mt19937 chance(41);
    std::vector<Compared> gathering, forward_first;
    for (const auto& [name, tokens, instance, nodes, batch, framework, kept_on] :
         {std::tuple{"wide", 64, "p4d.24xlarge", 1, 64, "", Offload::none},
          std::tuple{"wide", 64, "p4d.24xlarge", 1, 64, "", Offload::host},
          std::tuple{"gpt2-medium", 512, "p3.8xlarge", 2, 128, "pytorch", Offload::none},
          std::tuple{"gpt2-xl", 128, "g5.48xlarge", 1, 64, "", Offload::host},
          std::tuple{"llama-2-7b", 256, "p4d.24xlarge", 2, 128, "megatron-lm", Offload::none},
          std::tuple{"t5-small", 128, "g5.12xlarge", 1, 96, "deepspeed", Offload::none},
          std::tuple{"mixture", 256, "p4d.24xlarge", 1, 64, "", Offload::none},
          std::tuple{"mixture", 256, "p4d.24xlarge", 1, 32, "", Offload::host}}) {
        const std::string model = name;
        const model::ModelGraph graph = model == "mixture" ? mixture_of({.ffn = 2048})
                                        : model == "wide"  ? wide_model()
                                                           : load_graph(model, tokens);
        planner::Target target = target_of(instance, nodes);
        target.base.framework = framework;
        target.base.parameter_offload = target.base.optimizer_offload = kept_on;
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        std::vector<schedule::Plan> plans = planner::legal_plans(
            graph, target.cluster, {.global_batch = batch, .base = target.base, .most_virtual_stages = 2});
        std::erase_if(plans, [&](const schedule::Plan& plan) {
            const schedule::Schedule* const order = bounds.timed_order(plan);
            return !stages.partition(plan) ||
                   !(plan.fetches_parameters() ||
                     (order && goes_forward_first(plan) && plan.micro_batches > order->micro_batches));
        });
        std::shuffle(plans.begin(), plans.end(), chance);
        plans.resize(std::min<std::size_t>(plans.size(), 60));
        CHECK(plans.size() == 60);
        for (schedule::Plan plan : plans) {
            run_some_again(plan, chance);
            const auto memory = bounds.memory(plan);
            if (!memory) continue;
            plan.partition = *stages.partition(plan);
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
            INFO(name << " on " << instance << ": " << planner::describe(plan) << ", recompute "
                      << schedule::name_of(plan.recompute) << ", " << core::format(diagnostics));
            REQUIRE(evaluation);
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            if (!plan.fetches_parameters() || model == "wide")
                (plan.fetches_parameters() ? gathering : forward_first)
                    .push_back({memory->peak.value, evaluation->peak_memory.value});
        }
    }
    REQUIRE(gathering.size() > 50);
    REQUIRE(forward_first.size() > 20);
    CHECK(median_share(gathering) > 0.8);
    CHECK(median_share(forward_first) > 0.85);
}
