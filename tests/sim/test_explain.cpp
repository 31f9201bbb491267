#include <catch2/catch.hpp>
#include <string>

#include "cluster/describe.h"
#include "core/diagnostics.h"
#include "model/load.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "tests/cluster/instances.h"

namespace {

sim::Explanation explanation_of(const std::string& model, const cluster::Cluster& cluster,
                                const schedule::Plan& plan) {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(model, {}, diagnostics);
    REQUIRE(graph.has_value());
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(*graph, cluster, plan, diagnostics, {.keeps_timeline = true});
    INFO(core::format(diagnostics));
    REQUIRE(evaluation.has_value());
    return sim::explain(*evaluation, *graph, cluster, plan);
}

}  // namespace

TEST_CASE("times of operators add up to what compute takes, whole sequences or segments of them") {
    schedule::Plan plan;
    plan.layout = {1, 8, 2, "PDT"};
    plan.micro_batches = 8;
    SECTION("1f1b") { plan.schedule = "1f1b"; }
    SECTION("recomputed") {
        plan.schedule = "1f1b";
        plan.recompute = schedule::Recompute::full;
    }
    SECTION("split backward") { plan.schedule = "zb-h1"; }
    SECTION("segments") {
        plan.schedule = "seq1f1b";
        plan.schedule_parameters = schedule::SegmentParameters{4};
    }
    const sim::Explanation explanation = explanation_of("gpt3-175b", nodes_of("p4d.24xlarge", 2), plan);
    core::Seconds sum;
    for (const sim::OperatorTime& time : explanation.operators) sum += time.sum();
    // The host's part of a pass and the pace of the slowest device are not the operators'.
    CHECK(sum <= explanation.compute_busy * (1 + 1e-9));
    CHECK(sum >= explanation.compute_busy * 0.8);
}

TEST_CASE("the source of a link is that of the profile's own section where it has one") {
    schedule::Plan plan;
    plan.layout = {8, 1, 1, "PDT"};
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const sim::Explanation explanation = explanation_of("gpt2", cluster, plan);
    int links = 0;
    for (const sim::Influence& figure : explanation.figures) {
        if (figure.name.find("link.") == std::string::npos) continue;
        INFO(figure.name);
        ++links;
        const std::string type = figure.name.substr(figure.name.rfind('.') + 1);
        CHECK(figure.name == cluster::link_section(cluster.instance, type));
        const cluster::Provenance* provenance = cluster::provenance_of(cluster.instance, figure.name);
        REQUIRE(provenance != nullptr);
        CHECK(figure.source == provenance->source);
        CHECK(cluster.instance.provenance.contains(figure.name));
        // p4d states its own PCI Express, not that of the A100 card.
        if (type.find("pci") != std::string::npos) CHECK(figure.name.starts_with("topology."));
    }
    CHECK(links >= 2);
}
