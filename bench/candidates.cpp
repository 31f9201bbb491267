// How many plans of GPT-3 175B on 64 GPUs a planner bounds and simulates in a second of one processor: plans
// drawn from its whole space, each bounded by memory and by time of work, then simulated as the search does
// it (extrapolated) and whole. Calculon's closed form did 389 to 414 plans a second of a processor on the
// same 64 GPUs (one core of another machine). Timings on shared machines scatter: compare ratios, not digits.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "bench/processor_time.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/random.h"
#include "model/load.h"
#include "planner/bound/bounds.h"
#include "planner/search_space.h"
#include "sim/evaluate.h"

namespace {

template <class Work>
double rate_of(const std::vector<schedule::Plan>& plans, Work work) {
    const double start = processor_seconds();
    for (const schedule::Plan& plan : plans) work(plan);
    return static_cast<double>(plans.size()) / (processor_seconds() - start);
}

}  // namespace

int main() {
    core::Diagnostics diagnostics;
    core::Value model_table, cluster_table;
    model_table["name"] = "gpt3-175b";
    cluster_table["instance"] = "p4de.24xlarge";
    cluster_table["nodes"] = 8;
    const auto graph = model::load_model(model_table, {}, diagnostics);
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    if (!graph || !cluster) {
        fmt::print(stderr, "{}", core::format(diagnostics));
        return EXIT_FAILURE;
    }
    std::vector<schedule::Plan> all = planner::legal_plans(
        *graph, *cluster, {.global_batch = 64, .base = planner::default_plan(cluster->instance.device)});
    core::Random random(1);
    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
    planner::OrderCollection orders;
    planner::StageCollection stages(*graph, cluster->instance.device);
    planner::Bounds bounds(*cluster, orders, stages);
    fmt::print("gpt3-175b on 8 x p4de.24xlarge, global batch 64: {} plans\n", all.size());
    std::vector<schedule::Plan> fitting;
    const core::Bytes available = cluster->instance.device.memory;
    const double bounded = rate_of(all, [&](const schedule::Plan& plan) {
        const bool fits = !bounds.state_never_fits(plan);
        if (bounds.time_of_work(plan).value > 0 && fits && fitting.size() < 2000) fitting.push_back(plan);
    });
    fmt::print("  bounds of work and state       {:>10.0f} a CPU-second\n", bounded);
    std::vector<schedule::Plan> simulated;
    const double remembered = rate_of(fitting, [&](const schedule::Plan& plan) {
        const auto memory = bounds.memory(plan);
        if (memory && memory->peak <= available && simulated.size() < 300) simulated.push_back(plan);
    });
    fmt::print("  bounds of activations          {:>10.0f} a CPU-second\n", remembered);
    for (schedule::Plan& plan : simulated)
        if (const schedule::Partition* partition = stages.partition(plan)) plan.partition = *partition;
    const auto simulate = [&](std::optional<int> most, bool breaks_down) {
        return rate_of(simulated, [&](const schedule::Plan& plan) {
            core::Diagnostics unneeded;
            sim::EvaluateOptions options;
            options.verifies = false;
            options.repetition = &stages.repetition();
            options.breaks_down = breaks_down;
            if (most) options.most_micro_batches = std::max(8, *most * plan.layout.pipeline);
            sim::evaluate(*graph, *cluster, plan, unneeded, options);
        });
    };
    fmt::print("  simulations, as the search     {:>10.0f} a CPU-second ({} plans)\n", simulate(8, false),
               simulated.size());
    fmt::print("  ... of whole steps             {:>10.0f} a CPU-second\n", simulate(std::nullopt, false));
    fmt::print("  ... with their breakdown       {:>10.0f} a CPU-second\n", simulate(std::nullopt, true));
    return EXIT_SUCCESS;
}
