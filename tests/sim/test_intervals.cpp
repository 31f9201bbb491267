#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/breakdown.h"
#include "sim/uncertainty/interval.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

struct Predicted {
    model::ModelGraph graph;
    cluster::Cluster cluster;
    schedule::Plan plan;
    sim::Evaluation evaluation;
};

Predicted predict(const char* model, const char* instance, int nodes, int tensor,
                  const char* framework = "megatron-lm-2021") {
    Predicted p{load_graph(model), nodes_of(instance, nodes), {}, {}};
    p.plan.layout = {8 * nodes / tensor, tensor, 1, "PDT"};
    p.plan.micro_batches = 4;
    p.plan.framework = framework;
    core::Diagnostics diagnostics;
    std::optional<sim::Evaluation> evaluation = sim::evaluate(p.graph, p.cluster, p.plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(evaluation);
    p.evaluation = std::move(*evaluation);
    return p;
}

double width(const Predicted& p, const sim::Posterior& posterior, bool explains = false) {
    const sim::PredictionIntervals intervals =
        sim::intervals_of(p.evaluation, p.graph, p.cluster, p.plan, posterior, {.explains = explains});
    CHECK(intervals.step.low < p.evaluation.step_time);
    CHECK(intervals.step.high > p.evaluation.step_time);
    CHECK(intervals.peak.low < p.evaluation.peak_memory);
    CHECK(intervals.peak.high > p.evaluation.peak_memory);
    return std::log(intervals.step.high / intervals.step.low);
}

sim::Posterior without(bool (*is_forgotten)(const sim::MeasuredKind&)) {
    sim::Posterior posterior = sim::shipped_posterior();
    std::erase_if(posterior.measured, is_forgotten);
    return posterior;
}

}  // namespace

TEST_CASE("an interval holds its prediction, and is wider for what was never measured") {
    const Predicted p = predict("gpt2", "p4d.24xlarge", 2, 2);
    const double known = width(p, sim::shipped_posterior());
    CHECK(width(p, without([](const sim::MeasuredKind& kind) { return kind.device == "sm80"; })) > known);
    CHECK(width(p, without([](const sim::MeasuredKind& kind) {
                    return kind.device == "sm80" && kind.precision == "bf16";
                })) > known);
    CHECK(width(p, without([](const sim::MeasuredKind& kind) { return kind.framework == "Megatron-LM"; })) >
          known);
    CHECK(width(p, without([](const sim::MeasuredKind& kind) { return kind.family == "gpt"; })) > known);
    sim::Posterior small = sim::shipped_posterior();
    for (sim::MeasuredKind& kind : small.measured) kind.devices = 1;
    CHECK(width(p, small) > known);
}

TEST_CASE("four probes estimate the variance that single responses add up to") {
    for (const auto& [instance, nodes, tensor] : {std::tuple("p4d.24xlarge", 1, 1),
                                                  {"p4d.24xlarge", 4, 2},
                                                  {"p5.48xlarge", 2, 8},
                                                  {"p3dn.24xlarge", 2, 4}}) {
        INFO(instance << ", " << nodes << " nodes, tensor " << tensor);
        Predicted p{load_graph("gpt2"), nodes_of(instance, nodes), {}, {}};
        p.plan.layout = {8 * nodes / tensor, tensor, 1, "PDT"};
        p.plan.precision.compute = core::DataType::fp16;
        p.plan.framework = "megatron-lm-2021";
        p.plan.attention = model::AttentionImplementation::fused_softmax;
        core::Diagnostics diagnostics;
        p.evaluation = sim::evaluate(p.graph, p.cluster, p.plan, diagnostics).value();
        const double exact = width(p, sim::shipped_posterior(), true);
        CHECK(width(p, sim::shipped_posterior()) == Approx(exact).epsilon(0.15));
    }
}

TEST_CASE("learning is Bayes' rule for normal figures, and held parameters stay") {
    sim::Posterior posterior = sim::prior_posterior();
    const std::size_t site = posterior.index(sim::SiteEffect::everything), c = 0;
    posterior.covariance.set(site, site, 0.04);
    const double before = posterior.covariance(c, c), mean = posterior.mean[c];
    std::vector<double> response(posterior.mean.size(), 0.0);
    response[site] = 1;
    sim::learn(posterior, response, 0.1, 0.01);
    // Weights 1/0.04 and 1/0.01 of 0 and 0.1.
    CHECK(posterior.mean[site] == Approx(0.1 * 100 / 125));
    CHECK(posterior.covariance(site, site) == Approx(1.0 / 125));
    CHECK(posterior.covariance(c, c) == before);
    CHECK(posterior.mean[c] == mean);

    // Two causes of one error share it by their variances; one that is held takes no part, but still counts
    // as noise: 0.04 of 0.04 + 0.04 + 0.02.
    sim::Posterior tied = sim::prior_posterior();
    const std::size_t network = tied.index(sim::SiteEffect::network);
    tied.covariance.set(site, site, 0.04);
    tied.covariance.set(network, network, 0.04);
    response[network] = 1;
    std::vector<bool> held(tied.mean.size(), false);
    held[network] = true;
    sim::learn(tied, response, 0.1, 0.02, held);
    CHECK(tied.mean[site] == Approx(0.04));
    CHECK(tied.mean[network] == 0);
    CHECK(tied.covariance(network, network) == Approx(0.04));
    CHECK(tied.covariance(site, site) == Approx(0.04 - 0.04 * 0.04 / 0.1));
}

TEST_CASE("an outlier moves the mean less than its size would") {
    sim::Posterior mild = sim::prior_posterior(), wild = mild;
    const std::size_t site = mild.index(sim::SiteEffect::everything);
    std::vector<double> response(mild.mean.size(), 0.0);
    response[site] = 1;
    for (sim::Posterior* posterior : {&mild, &wild}) posterior->covariance.set(site, site, 0.01);
    sim::learn(mild, response, 0.2, 0.01);
    sim::learn(wild, response, 2.0, 0.01);
    CHECK(mild.mean[site] > 0);
    CHECK(wild.mean[site] > mild.mean[site]);
    CHECK(wild.mean[site] < 0.5 * 10 * mild.mean[site]);
}

TEST_CASE("site effects scale a step by its shares, and the breakdown still adds up") {
    Predicted p = predict("gpt2", "p4d.24xlarge", 2, 8);
    sim::Posterior posterior = sim::shipped_posterior();
    posterior.mean[posterior.index(sim::SiteEffect::everything)] = std::log(1.1);
    const core::Seconds before = p.evaluation.step_time;
    const double mfu = p.evaluation.mfu;
    sim::apply_site_effects(p.evaluation, posterior);
    CHECK(p.evaluation.step_time / before == Approx(1.1));
    CHECK(p.evaluation.mfu * 1.1 == Approx(mfu));
    CHECK(sim::sum(p.evaluation.breakdown).value == Approx(p.evaluation.step_time.value).epsilon(1e-12));
}

TEST_CASE("a posterior reads back as it was written") {
    sim::Posterior posterior = sim::shipped_posterior();
    posterior.date = "2026-11-22";
    posterior.command = "a test";
    core::Diagnostics diagnostics;
    const auto document =
        core::parse_toml(core::to_toml(sim::to_value(posterior)), "written.toml", diagnostics);
    REQUIRE(document);
    const auto read = sim::read_posterior(*document, "written.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(read);
    CHECK(read->measured.size() == posterior.measured.size());
    CHECK(read->step.factor_80 == Approx(posterior.step.factor_80).epsilon(1e-3));
    for (std::size_t i = 0; i < posterior.mean.size(); ++i) {
        CHECK(read->mean[i] == Approx(posterior.mean[i]).epsilon(1e-5).margin(1e-12));
        for (std::size_t j = 0; j <= i; ++j) {
            const double scale = std::sqrt(posterior.covariance(i, i) * posterior.covariance(j, j));
            CHECK(read->covariance(i, j) ==
                  Approx(posterior.covariance(i, j)).epsilon(1e-4).margin(2e-5 * scale));
        }
    }
}

TEST_CASE("constants that a posterior's file does not know keep their prior, others' are left out") {
    core::Value document = sim::to_value(sim::prior_posterior());
    document["command"] = "a test";
    document["date"] = "2026-11-22";
    core::Value only = core::Value::array();
    core::Value gone = core::Value::table();
    gone["name"] = "constant_of_another_version";
    gone["mean"] = 1.0;
    gone["deviation"] = 0.1;
    gone["correlations"] = core::Value::array();
    only.append(std::move(gone));
    document["parameter"] = std::move(only);
    core::Diagnostics diagnostics;
    const auto read = sim::read_posterior(document, "other.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(read);
    const sim::Posterior prior = sim::prior_posterior();
    CHECK(read->mean == prior.mean);
    for (std::size_t p = 0; p < prior.mean.size(); ++p)
        CHECK(read->covariance(p, p) == prior.covariance(p, p));
}

TEST_CASE("the shipped posterior is of this version's constants (else run bench/posterior)") {
    const sim::Posterior& posterior = sim::shipped_posterior();
    const sim::Posterior prior = sim::prior_posterior();
    CHECK(posterior.mean == prior.mean);
    REQUIRE(posterior.covariance.size() == prior.covariance.size());
    int narrower = 0;
    for (std::size_t c = 0; c < posterior.constants(); ++c) {
        CHECK(posterior.covariance(c, c) <= prior.covariance(c, c) * (1 + 1e-4));
        narrower += posterior.covariance(c, c) < 0.98 * prior.covariance(c, c) ? 1 : 0;
    }
    CHECK(narrower > static_cast<int>(posterior.constants()) / 2);
    CHECK(posterior.step.factor_80 > 0.5);
    CHECK(posterior.measured.size() > 10);
}
