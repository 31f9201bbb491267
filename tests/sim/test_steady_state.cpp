// Long steps from one short one that is in its steady state.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "core/diagnostics.h"
#include "core/random.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "sim/engine/steady_state.h"
#include "sim/evaluate.h"
#include "sim/report/breakdown.h"
#include "tests/cluster/instances.h"
#include "tests/core/sanitizers.h"
#include "tests/model/catalogue.h"

namespace {

std::optional<schedule::Schedule> order_of(const std::string& name, int ranks, int stages,
                                           int micro_batches) {
    schedule::Plan plan;
    plan.layout.pipeline = ranks;
    plan.virtual_stages = stages;
    plan.schedule = name;
    core::Diagnostics unneeded;
    return schedule::make_schedule(plan, unneeded, micro_batches);
}

}  // namespace

TEST_CASE("the block that an order repeats is one micro-batch, or a round of interleaved groups") {
    const auto block_of = [](const char* name, int ranks, int stages, int shorter, int longer) {
        const auto a = order_of(name, ranks, stages, shorter), b = order_of(name, ranks, stages, longer);
        REQUIRE(a);
        REQUIRE(b);
        return sim::repeated_block(*a, *b);
    };
    // Of a pipeline of four: four in flight, one before and one behind.
    CHECK(block_of("1f1b", 4, 1, 10, 64) == 1);
    CHECK(block_of("1f1b", 4, 1, 11, 64) == 1);
    CHECK_FALSE(block_of("1f1b", 4, 1, 6, 64));
    CHECK(block_of("interleaved-1f1b", 4, 2, 20, 64) == 4);
    CHECK_FALSE(block_of("interleaved-1f1b", 4, 2, 8, 64));
    // All forwards come first: what is longer is longer in two places.
    CHECK_FALSE(block_of("gpipe", 4, 1, 16, 64));
}

TEST_CASE("a step that follows from one short one is the whole step, whatever its stages and links") {
    const model::ModelGraph graph = load_graph("gpt2-xl");
    core::Random random(7);
    const auto below = [&](int end) { return static_cast<int>(random.below(std::uint64_t(end))); };
    const std::vector<schedule::PipelineSchedule>& orders = schedule::pipeline_schedules();
    const char* usual[] = {"1f1b", "interleaved-1f1b", "zb-h1", "seq1f1b"};
    std::map<std::string, int> followed;
    int tried = 0, with_copies = 0, stopped_early = 0;
    for (int draw = 0; draw < (is_sanitized ? 150 : 450); ++draw) {
        // Half of them of the usual ones.
        const schedule::PipelineSchedule& order = below(2)
                                                      ? *schedule::find_pipeline_schedule(usual[below(4)])
                                                      : orders[std::size_t(below(int(orders.size())))];
        const cluster::Cluster cluster = nodes_of(below(2) ? "p4d.24xlarge" : "g4dn.12xlarge", 4);
        schedule::Plan plan;
        plan.layout.pipeline = 1 << (1 + below(3));
        plan.layout.tensor = 1 << below(2);
        plan.layout.data = cluster.device_count() / plan.layout.pipeline / plan.layout.tensor;
        if (plan.layout.data == 0) continue;
        plan.virtual_stages = 1 + below(3);
        plan.schedule = order.name;
        plan.micro_batch = 1;
        plan.micro_batches = plan.layout.pipeline * (10 + below(6)) + (below(2) ? below(4) : 0);
        plan.sharding = below(2)   ? schedule::Sharding::none
                        : below(2) ? schedule::Sharding::gradients
                                   : schedule::Sharding::parameters;
        plan.recompute = below(2) ? schedule::Recompute::none : schedule::Recompute::full;
        if (plan.recompute == schedule::Recompute::full && below(2)) plan.recompute_layers = int(below(3));
        else if (plan.recompute == schedule::Recompute::full)
            for (int stage = 0; stage < plan.stages(); ++stage)
                plan.recompute_layers_by_stage.push_back(below(3));
        plan.precision = schedule::precision_named(core::DataType::fp16);
        plan.attention = model::AttentionImplementation::unfused;
        if (below(3) == 0) {
            plan.offload = schedule::Offload::host;
            plan.activation_loading_horizon = 1 + below(60);
        }
        if (below(3) == 0) plan.optimizer_offload = schedule::Offload::host;
        if (plan.updates_on_hosts() && plan.sharding == schedule::Sharding::parameters)
            plan.parameter_offload = schedule::Offload::host;
        core::Diagnostics problems;
        schedule::check_plan(plan, graph, cluster.device_count(), nullptr, problems);
        if (problems.has_errors()) continue;
        const std::optional<schedule::Partition> balanced = sim::complete_partition(plan, graph, cluster);
        REQUIRE(balanced);
        plan.partition = *balanced;
        // Uneven stages: some cuts are moved.
        std::vector<int>& cuts = plan.partition.first_units;
        for (std::size_t cut = 1; cut < cuts.size(); ++cut) {
            const int moved = cuts[cut] + below(3) - 1;
            const int next = cut + 1 < cuts.size() ? cuts[cut + 1] : int(graph.units.size());
            if (moved > cuts[cut - 1] && moved < next) cuts[cut] = moved;
        }
        core::Diagnostics diagnostics;
        const auto whole = sim::evaluate(graph, cluster, plan, diagnostics);
        const auto line = sim::evaluate(graph, cluster, plan, diagnostics,
                                        {.most_micro_batches = 8 * plan.layout.pipeline});
        INFO(core::format(diagnostics));
        REQUIRE(whole);
        REQUIRE(line);
        ++tried;
        // Devices with a little more memory than it needs, and with a little less.
        for (const double share : {1.0001, 0.97}) {
            cluster::Cluster other = cluster;
            other.instance.device.memory = whole->peak_memory * share;
            other.instance.host_memory = {};  // unknown, and no bound
            const auto stopped =
                sim::evaluate(graph, other, plan, diagnostics,
                              {.most_micro_batches = 8 * plan.layout.pipeline, .stops_at_overflow = true});
            REQUIRE(stopped);
            INFO(share << ", " << stopped->tightest << ", " << core::to_toml(schedule::to_value(plan)));
            CHECK(stopped->fits == (share > 1));
            CHECK(stopped->peak_memory <= whole->peak_memory * (1 + 1e-9));
            stopped_early += stopped->overflows_early;
        }
        if (!line->is_extrapolated) continue;
        ++followed[order.name];
        with_copies += plan.offload != schedule::Offload::none && line->host_memory.value > 0 ? 1 : 0;
        CHECK(line->host_memory.value == Approx(whole->host_memory.value).epsilon(1e-9));
        INFO(order.name << " x" << plan.virtual_stages << ", p " << plan.layout.pipeline << ", t "
                        << plan.layout.tensor << ", " << plan.micro_batches << " micro-batches, sharding "
                        << schedule::name_of(plan.sharding) << ", draw " << draw);
        CHECK(line->step_time.value == Approx(whole->step_time.value).epsilon(1e-8));
        CHECK(line->peak_memory.value == Approx(whole->peak_memory.value).epsilon(1e-9));
        CHECK(line->hardware_flops_per_gpu.value ==
              Approx(whole->hardware_flops_per_gpu.value).epsilon(1e-8));
        for (const sim::BreakdownPart& part : sim::breakdown_parts())
            CHECK(std::abs((line->breakdown.*part.part - whole->breakdown.*part.part).value) <=
                  1e-7 * whole->step_time.value);
    }
    REQUIRE(tried > (is_sanitized ? 20 : 60));
    CHECK(with_copies >= (is_sanitized ? 1 : 5));
    CHECK(stopped_early > tried / 8);
    for (const char* name : {"1f1b", "interleaved-1f1b"}) CHECK(followed[name] > 0);
    int all = 0;
    for (const auto& [name, count] : followed) all += count;
    CHECK(all > tried / 4);
    WARN(all << " of " << tried << " steps were extrapolated, and " << stopped_early
             << " stopped where memory was exceeded");
}
