// Random scenarios that the simulator accepts: a model, a cluster and a plan whose partition is fixed, so
// that a changed cluster changes times and not the plan.
#pragma once

#include <catch2/catch.hpp>

#include <climits>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "core/random.h"
#include "core/value.h"
#include "schedule/collective/library.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace metamorphic {

struct Scenario {
    std::string model, instance;
    std::int64_t tokens = 0;
    model::ModelGraph graph;
    cluster::Cluster cluster;
    schedule::Plan plan;
};

inline std::string describe(const Scenario& scenario) {
    return scenario.model + " of " + std::to_string(scenario.tokens) + " tokens on " +
           std::to_string(scenario.cluster.nodes) + " x " + scenario.instance + "\n" +
           core::to_toml(schedule::to_value(scenario.plan));
}

inline std::optional<sim::Evaluation> try_evaluate(const Scenario& scenario,
                                                   const sim::EvaluateOptions& options = {}) {
    core::Diagnostics diagnostics;
    schedule::check_plan(scenario.plan, scenario.graph, scenario.cluster.device_count(), nullptr,
                         diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    return sim::evaluate(scenario.graph, scenario.cluster, scenario.plan, diagnostics, options);
}

class Generator {
public:
    explicit Generator(std::uint64_t seed) : random_(seed) {}

    // The next one that all checks accept.
    Scenario next() {
        for (;;)
            if (std::optional<Scenario> scenario = draw()) return *std::move(scenario);
    }

private:
    template <class T>
    T one_of(const std::vector<T>& values) {
        return values[random_.below(values.size())];
    }
    bool happens(double probability) { return random_.uniform() < probability; }

    const model::ModelGraph& graph(const std::string& name, std::int64_t tokens) {
        const auto [entry, is_new] = graphs_.try_emplace({name, tokens});
        if (is_new) entry->second = load_graph(name, tokens);
        return entry->second;
    }

    std::optional<Scenario> draw() {
        Scenario scenario;
        scenario.model = one_of<std::string>(
            {"gpt2", "gpt2", "bert-large", "bert-base", "resnet50", "t5-base", "llama-2-7b", "gpt2-xl"});
        const bool has_tokens = scenario.model != "resnet50" && scenario.model != "t5-base";
        scenario.tokens = has_tokens ? one_of<std::int64_t>({256, 512}) : 0;
        scenario.instance = one_of<std::string>(
            {"g4dn.12xlarge", "p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4d.24xlarge", "p5.48xlarge"});
        scenario.graph = graph(scenario.model, scenario.tokens);
        const int nodes = one_of<int>({1, 1, 2, 2, 3, 4});
        scenario.cluster = nodes_of(scenario.instance, nodes);
        draw_plan(scenario);
        core::Diagnostics diagnostics;
        schedule::check_plan(scenario.plan, scenario.graph, scenario.cluster.device_count(), nullptr,
                             diagnostics);
        if (diagnostics.has_errors() || scenario.plan.layout.ranks() < scenario.cluster.device_count())
            return std::nullopt;
        std::optional<schedule::Partition> partition =
            sim::complete_partition(scenario.plan, scenario.graph, scenario.cluster);
        if (!partition) return std::nullopt;
        scenario.plan.partition = *std::move(partition);
        if (!sim::evaluate(scenario.graph, scenario.cluster, scenario.plan, diagnostics)) return std::nullopt;
        return scenario;
    }

    void draw_plan(Scenario& scenario) {
        schedule::Plan& plan = scenario.plan;
        const int devices = scenario.cluster.device_count();
        plan.layout.pipeline = one_of<int>({1, 1, 2, 4});
        plan.layout.tensor = one_of<int>({1, 1, 2, 4});
        plan.layout.data = std::max(1, devices / (plan.layout.pipeline * plan.layout.tensor));
        if (plan.layout.data % 2 == 0 && happens(0.1)) plan.layout.context = 2;
        plan.layout.order = one_of<std::string>({"PDT", "PDT", "DPT", "TPD"});
        if (plan.layout.pipeline > 1) {
            const schedule::PipelineSchedule& entry = one_of(schedule::pipeline_schedules());
            plan.schedule = entry.is_forward_only ? "1f1b" : entry.name;
            plan.virtual_stages = std::max(entry.least_chunks, 1);
        }
        plan.micro_batch = one_of<int>({1, 2, 4});
        plan.micro_batches = one_of<int>({1, 2, 4, 6, 8});
        plan.sharding = one_of<schedule::Sharding>(
            {schedule::Sharding::none, schedule::Sharding::none, schedule::Sharding::optimizer,
             schedule::Sharding::gradients, schedule::Sharding::parameters});
        if (plan.sharding != schedule::Sharding::none && plan.layout.data % 2 == 0 && happens(0.3))
            plan.shard_degree = plan.layout.data / 2;
        plan.recompute =
            one_of<schedule::Recompute>({schedule::Recompute::none, schedule::Recompute::none,
                                         schedule::Recompute::selective, schedule::Recompute::full});
        if (plan.recompute == schedule::Recompute::full && happens(0.5))
            plan.recompute_layers = one_of<int>({1, 2, 4});
        if (plan.recompute == schedule::Recompute::full && plan.recompute_layers == 0 && of_stages_.below(2))
            for (int stage = 0; stage < plan.stages(); ++stage)
                plan.recompute_layers_by_stage.push_back(stage == 0 ? 1 : int(of_stages_.below(4)));
        if (plan.recompute == schedule::Recompute::selective && happens(0.5))
            plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                      schedule::RecomputeModule::activation,
                                      schedule::RecomputeModule::moe_act};
        if (happens(0.1)) plan.offload = schedule::Offload::host;
        plan.sequence_parallel = plan.layout.tensor > 1 && happens(0.5);
        const bool is_old = scenario.cluster.instance.device.architecture < "sm80";
        const core::DataType half = is_old ? core::DataType::fp16 : core::DataType::bf16;
        plan.precision.compute = plan.precision.parameters = plan.precision.gradients = half;
        if (is_old) plan.attention = model::AttentionImplementation::unfused;
        plan.overlaps_gradient_reduction = happens(0.8);
        plan.overlaps_parameter_gathering = happens(0.8);
        if (happens(0.4)) plan.communication = one_of(schedule::communication_libraries()).name;
        plan.framework = one_of<std::string>({"", "", "pytorch", "deepspeed", "megatron-lm"});
        if (happens(0.15)) plan.optimizer_offload = schedule::Offload::host;
        if (plan.updates_on_hosts() && happens(0.5)) {
            plan.parameter_offload = schedule::Offload::host;
            plan.sharding = schedule::Sharding::parameters;
            plan.shard_degree = 0;
        }
    }

    core::Random random_, of_stages_{20261130};
    std::map<std::pair<std::string, std::int64_t>, model::ModelGraph> graphs_;
};

}  // namespace metamorphic
