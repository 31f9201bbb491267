// One instruction for what a pass computes and exchanges is a way to say the same with less: a step takes as
// long, and as much memory, as with every instruction for itself.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/core/sanitizers.h"

namespace {

model::ModelGraph gpt(int layers) {
    core::Value table;
    core::Diagnostics diagnostics;
    table["name"] = "gpt2";
    table["layers"] = layers;
    auto graph = model::load_model(table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

struct Compared {
    std::size_t plans = 0, instructions = 0, joined = 0, peaks = 0, other_peaks = 0;
    double more_held = 0;  // sum of shares
};

void compare(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan,
             Compared& compared) {
    core::Diagnostics unsupported;
    if (!schedule::check_schedule(plan, unsupported)) return;
    schedule::check_plan(plan, graph, cluster.device_count(), nullptr, unsupported);
    if (unsupported.has_errors()) return;
    for (const bool shares_links : {true, false}) {
        sim::EvaluateOptions options;
        options.verifies = false;
        options.shares_links = shares_links;
        const auto single = sim::evaluate(graph, cluster, plan, unsupported, options);
        options.breaks_down = false;
        const auto joined = sim::evaluate(graph, cluster, plan, unsupported, options);
        INFO(plan.schedule << ", tensor " << plan.layout.tensor << ", pipeline " << plan.layout.pipeline);
        REQUIRE(single);
        REQUIRE(joined);
        const double missed = std::abs(joined->step_time / single->step_time - 1);
        CHECK(missed < 1e-9);
        REQUIRE(joined->memory.size() == single->memory.size());
        for (std::size_t c = 0; c < single->memory.size(); ++c) {
            const double off = std::abs(joined->memory[c].peak / single->memory[c].peak - 1),
                         off_process = std::abs(joined->memory[c].process / single->memory[c].process - 1);
            CHECK(off < 0.005);
            CHECK(off_process < 0.005);
            ++compared.peaks;
            compared.more_held += joined->memory[c].peak / single->memory[c].peak - 1;
            compared.other_peaks += off > 1e-9 || off_process > 1e-9 ? 1 : 0;
        }
        if (!shares_links) continue;
        ++compared.plans;
        compared.instructions += single->simulated_instructions;
        compared.joined += joined->simulated_instructions;
    }
}

}  // namespace

TEST_CASE("joined passes take as long and as much memory as their instructions one by one") {
    const model::ModelGraph graph = gpt(8);
    Compared compared;
    int draw = 0;
    for (const std::string instance : {"p4d.24xlarge", "p3.16xlarge"})
        for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules())
            for (const schedule::Sharding sharding :
                 {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
                  schedule::Sharding::parameters})
                for (const int tensor : {1, 4})
                    for (const int way : {0, 1, 2, 3}) {
                        if (is_sanitized && draw++ % 7 != 0) continue;
                        schedule::Plan plan;
                        plan.schedule = order.name;
                        plan.layout.pipeline = way == 3 ? 2 : 4;
                        plan.layout.tensor = tensor;
                        plan.layout.context = way == 2 ? 2 : 1;
                        plan.layout.data = 32 / plan.layout.pipeline / tensor / plan.layout.context;
                        plan.sharding = sharding;
                        plan.sequence_parallel = tensor > 1 && way != 1;
                        plan.recompute = way == 1   ? schedule::Recompute::full
                                         : way == 2 ? schedule::Recompute::selective
                                                    : schedule::Recompute::none;
                        plan.overlaps_gradient_reduction = way != 0;
                        plan.micro_batches = 8;
                        plan.precision = schedule::precision_named(core::DataType::fp16);
                        for (const int chunks : {1, 2}) {
                            plan.virtual_stages = chunks;
                            compare(graph, nodes_of(instance, 4), plan, compared);
                        }
                    }
    // Not in vain: many plans, and lists that are a fraction as long.
    CHECK(compared.plans >= (is_sanitized ? 40 : 300));
    CHECK(compared.joined * 2 < compared.instructions);
    // What ends on one rank when something begins on another comes before or after it by their rounding: a
    // message more or less is held then.
    CHECK(compared.other_peaks * 10 < compared.peaks);
    CHECK(std::abs(compared.more_held) < 1e-4 * double(compared.peaks));
}
