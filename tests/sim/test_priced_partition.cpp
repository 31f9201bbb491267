// The partition of a plan without one, against every other that there is.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/diagnostics.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

TEST_CASE("the default partition's step is within half a per cent of the best contiguous partition's") {
    struct Case {
        const char* model;
        int pipeline;
        const char* instance;
    };
    const Case chosen = GENERATE(Case{"bert-large", 2, "p3dn.24xlarge"}, Case{"resnet50", 2, "p3dn.24xlarge"},
                                 Case{"t5-large", 2, "p3dn.24xlarge"}, Case{"gpt2", 4, "p4d.24xlarge"},
                                 Case{"bert-base", 4, "g4dn.12xlarge"}, Case{"resnet50", 4, "p4d.24xlarge"});
    INFO(chosen.model << " in " << chosen.pipeline << " stages on " << chosen.instance);
    const model::ModelGraph graph = load_graph(chosen.model);
    const cluster::Cluster cluster = nodes_of(chosen.instance, 1);
    schedule::Plan plan;
    plan.layout = {cluster.device_count() / chosen.pipeline, 1, chosen.pipeline, "PDT"};
    plan.micro_batches = 2 * chosen.pipeline;
    plan.precision = {core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true};
    plan.attention = model::AttentionImplementation::unfused;
    const auto step = [&](const std::vector<std::int32_t>& cuts) {
        plan.partition.first_units = cuts;
        core::Diagnostics diagnostics;
        const std::optional<sim::Evaluation> evaluation =
            sim::evaluate(graph, cluster, plan, diagnostics, {.verifies = false});
        REQUIRE(evaluation);
        return evaluation->fits ? evaluation->step_time.value : std::numeric_limits<double>::infinity();
    };
    const std::optional<schedule::Partition> partition = sim::complete_partition(plan, graph, cluster);
    REQUIRE(partition);
    const double own = step(partition->first_units);
    // Every choice of cuts: those units of which a mask says that a stage begins there.
    const std::size_t units = graph.units.size();
    std::vector<bool> begins(units - 1, false);
    std::fill(begins.begin(), begins.begin() + chosen.pipeline - 1, true);
    double best = std::numeric_limits<double>::infinity(), worst = 0;
    do {
        std::vector<std::int32_t> cuts = {0};
        for (std::int32_t u = 1; u < static_cast<std::int32_t>(units); ++u)
            if (begins[static_cast<std::size_t>(u) - 1]) cuts.push_back(u);
        const double time = step(cuts);
        best = std::min(best, time);
        worst = std::max(worst, time);
    } while (std::prev_permutation(begins.begin(), begins.end()));
    CHECK(own <= best * 1.005);
    CHECK(worst > best * 1.1);  // there was something to choose
}
