// From plan to prediction on GPT-3 175B over 1,024 GPUs (pipeline 16, tensor 8, data 8): building the graph,
// lowering, verification, pricing and simulation, each as the median of repeated runs in processor time and
// as instructions per second. Timings on shared machines scatter: compare ratios, not digits.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "bench/processor_time.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/partition.h"
#include "schedule/verify.h"
#include "sim/cost/pricing.h"
#include "sim/engine/simulate.h"
#include "sim/evaluate.h"

namespace {

template <class Work>
double median_seconds(int repeats, Work work) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        const double start = processor_seconds();
        work();
        times.push_back(processor_seconds() - start);
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[static_cast<std::size_t>(repeats / 2)];
}

void report(const char* what, double seconds, double instructions) {
    fmt::print("  {:<28} {:>9.2f} ms  {:>8.2f} M instructions/s\n", what, 1e3 * seconds,
               instructions / seconds / 1e6);
}

}  // namespace

int main() {
    core::Diagnostics diagnostics;
    core::Value model_table;
    model_table["name"] = "gpt3-175b";
    core::Value cluster_table;
    cluster_table["instance"] = "p4d.24xlarge";
    cluster_table["nodes"] = 128;
    const auto graph = model::load_model(model_table, {}, diagnostics);
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    schedule::Plan plan;
    plan.layout = {.data = 8, .tensor = 8, .pipeline = 16, .order = "PDT"};
    plan.micro_batches = 192;
    plan.sequence_parallel = true;
    plan.sharding = schedule::Sharding::optimizer;
    plan.recompute = schedule::Recompute::selective;
    if (!graph || !cluster) {
        fmt::print(stderr, "{}", core::format(diagnostics));
        return EXIT_FAILURE;
    }
    plan.partition = schedule::complete_partition(plan, *graph).value();
    const auto order = schedule::make_schedule(plan, diagnostics);
    auto costs = sim::make_cost_models(*graph, *cluster, plan, diagnostics);
    if (!order || !costs) {
        fmt::print(stderr, "{}", core::format(diagnostics));
        return EXIT_FAILURE;
    }
    const schedule::Program program = schedule::lower(plan, *graph, *order);
    double instructions = 0;
    for (const schedule::RankProgram& rank : program.classes)
        instructions += static_cast<double>(rank.instructions.size());
    const sim::PricedProgram priced = sim::price(program, *costs);

    fmt::print("gpt3-175b, 1,024 ranks in {} classes, {} micro-batches, {:.0f} instructions\n",
               program.classes.size(), plan.micro_batches, instructions);
    fmt::print("  {:<28} {:>9.2f} ms\n", "build the model's graph",
               1e3 * median_seconds(9, [&] { model::load_model(model_table, {}, diagnostics); }));
    report("lower", median_seconds(9, [&] { schedule::lower(plan, *graph, *order); }), instructions);
    report("verify", median_seconds(9, [&] { schedule::verify(program); }), instructions);
    report("price", median_seconds(9, [&] { sim::price(program, *costs); }), instructions);
    report("simulate", median_seconds(9, [&] { sim::simulate(program, priced.durations); }), instructions);
    report(
        "simulate, makespan only",
        median_seconds(9,
                       [&] {
                           sim::simulate(
                               program, priced.durations,
                               {.keeps_spans = false, .keeps_memory_samples = false, .tracks_memory = false});
                       }),
        instructions);
    const double whole = median_seconds(5, [&] { sim::evaluate(*graph, *cluster, plan, diagnostics); });
    const double short_run = median_seconds(
        5, [&] { sim::evaluate(*graph, *cluster, plan, diagnostics, {.most_micro_batches = 64}); });
    fmt::print(
        "  evaluate: all micro-batches {:.1f} ms, 64 and extrapolated {:.1f} ms ({:.1f} times faster)\n",
        1e3 * whole, 1e3 * short_run, whole / short_run);
    // Every rank on its own, and a cluster sixteen times as large folded.
    const double unfolded =
        median_seconds(1, [&] { sim::evaluate(*graph, *cluster, plan, diagnostics, {.is_folded = false}); });
    cluster_table["nodes"] = 2048;
    const auto large = cluster::load_cluster(cluster_table, diagnostics);
    schedule::Plan wide = plan;
    wide.layout.data = 128;
    const double folded = median_seconds(3, [&] { sim::evaluate(*graph, *large, wide, diagnostics); });
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    fmt::print(
        "  evaluate 1,024 ranks unfolded: {:.2f} s; 16,384 ranks folded: {:.2f} s; most memory {:.0f} MiB\n",
        unfolded, folded, static_cast<double>(usage.ru_maxrss) / 1024);
    return EXIT_SUCCESS;
}
