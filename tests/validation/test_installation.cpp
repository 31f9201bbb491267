#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <string>

#include "core/diagnostics.h"
#include "tests/validation/synthetic_runs.h"
#include "validation/installation.h"
#include "validation/linearised_runs.h"
#include "validation/posterior_fit.h"
#include "validation/source.h"

namespace {

// Language models on one cluster of A100 with InfiniBand.
SyntheticRuns installation() {
    SyntheticRuns runs;
    runs.add_cluster({{"id", "here"},
                      {"gpu", "A100-80"},
                      {"gpu_memory_gib", "80"},
                      {"gpus_per_node", "8"},
                      {"intra_node", "nvlink3_nvswitch"},
                      {"intra_node_gbs_per_dir", "300"},
                      {"nics_per_node", "8"},
                      {"gbit_per_nic", "200"},
                      {"transport", "infiniband"},
                      {"gpudirect", "yes"}});
    const Cells gpt = {{"cluster", "here"},
                       {"model", "gpt"},
                       {"layers", "24"},
                       {"hidden", "2048"},
                       {"heads", "16"},
                       {"kv_heads", "16"},
                       {"ffn", "8192"},
                       {"vocab", "51200"},
                       {"seq_len", "2048"},
                       {"tied_embeddings", "yes"},
                       {"framework", "Megatron-LM"},
                       {"grad_accumulation", "8"}};
    for (const char* nodes : {"1", "4"})
        for (const char* tensor : {"1", "4"})
            for (const char* batch : {"1", "4"})
                runs.add(gpt + Cells{{"nodes", nodes}, {"tensor_parallel", tensor}, {"micro_batch", batch}});
    return runs;
}

core::CsvTable some(const core::CsvTable& table, const std::vector<std::size_t>& rows) {
    core::CsvTable result{table.file, table.header, {}};
    for (std::size_t i : rows) result.rows.push_back(table.rows[i]);
    return result;
}

validation::Validation score(const core::CsvTable& runs, const core::CsvTable& clusters,
                             const sim::Posterior* calibration) {
    core::Diagnostics diagnostics;
    validation::ValidateOptions options;
    options.calibration = calibration;
    options.has_intervals = true;
    return validation::validate(runs, clusters, nullptr, diagnostics, options).value();
}

// Measured times are what these constants predict.
void measure_with(const sim::CostConstants& truth, SyntheticRuns& runs) {
    core::Diagnostics diagnostics;
    validation::ValidateOptions as_true;
    as_true.constants = truth;
    const auto measured = validation::validate(runs.table(), runs.clusters(), nullptr, diagnostics, as_true);
    REQUIRE(measured);
    for (std::size_t i = 0; i < measured->rows.size(); ++i) {
        INFO(measured->rows[i].reason);
        REQUIRE(measured->rows[i].status == validation::PredictionStatus::ok);
        runs.measure(i, measured->rows[i].predicted.value);
    }
}

double width(const validation::ScoredRow& row) {
    return std::log(row.predicted_80->second / row.predicted_80->first);
}

}  // namespace

TEST_CASE("runs made with known constants are recognised within the stated deviation") {
    SyntheticRuns runs = installation();
    sim::CostConstants truth;
    truth.memory_rate = 0.8;
    truth.passes_eager = 1.3;
    truth.sustained_ampere = 0.9;
    measure_with(truth, runs);
    core::Diagnostics diagnostics;
    const sim::Posterior& start = sim::shipped_posterior();
    const auto found = validation::calibrate_installation(runs.table(), runs.clusters(), start, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(found);
    CHECK(found->used == static_cast<int>(runs.table().rows.size()));

    // What is identified are combinations: those that the predictions answer to. Each differs from the truth
    // by what its own posterior allows.
    const validation::LinearisedRuns linearised = validation::linearise(
        runs.table(), runs.clusters(), {.constants = found->posterior.cost_constants()});
    for (const validation::LinearisedRun& run : linearised.runs) {
        INFO("row " << run.id);
        const std::vector<double> response = sim::whole_response(run.responses.step, run.breakdown);
        double difference = 0;
        std::size_t c = 0;
        for (const sim::NamedConstant& constant : sim::named_constants()) {
            difference += response[c] * (found->posterior.mean[c] - truth.*constant.value);
            ++c;
        }
        for (std::size_t e = 0; e < sim::site_effects; ++e)
            difference += response[c + e] * found->posterior.mean[c + e];
        const std::vector<double> with = found->posterior.covariance.times(response);
        double variance = 0;
        for (std::size_t p = 0; p < with.size(); ++p) variance += response[p] * with[p];
        CHECK(std::abs(difference) < 3 * std::sqrt(variance) + 1e-3);
    }
    // Three fifths of the error are gone; the prior holds on to the rest, the more the narrower it is.
    CHECK(found->after.macro_mape < 0.4 * found->before.macro_mape);

    // Constants that nothing here answers to stay, with what is known of them.
    std::size_t c = 0;
    int untouched = 0;
    for (const sim::NamedConstant& constant : sim::named_constants()) {
        INFO(constant.name);
        const bool answers =
            std::any_of(linearised.runs.begin(), linearised.runs.end(),
                        [&](const validation::LinearisedRun& run) { return run.responses.step[c] != 0; });
        if (!answers && found->posterior.mean[c] == start.mean[c]) ++untouched;
        if (std::string(constant.name) == "rate_roce" || std::string(constant.name) == "convolution_rate") {
            CHECK(found->posterior.mean[c] == start.mean[c]);
            CHECK(found->posterior.covariance(c, c) == start.covariance(c, c));
        }
        ++c;
    }
    CHECK(untouched >= 10);
}

TEST_CASE("three runs narrow the intervals of an installation's other runs, and centre them") {
    SyntheticRuns runs = installation();
    runs.predict();
    // A site that is 8 % slower throughout.
    for (std::size_t i = 0; i < runs.size(); ++i) runs.measure(i, 1.08 * runs.seconds(i));
    const core::CsvTable given = some(runs.table(), {0, 3, 6}), rest = some(runs.table(), {1, 2, 4, 5, 7});
    core::Diagnostics diagnostics;
    const auto found =
        validation::calibrate_installation(given, runs.clusters(), sim::shipped_posterior(), diagnostics);
    REQUIRE(found);
    const validation::Validation before = score(rest, runs.clusters(), nullptr),
                                 after = score(rest, runs.clusters(), &found->posterior);
    for (std::size_t i = 0; i < rest.rows.size(); ++i) {
        INFO(before.rows[i].id);
        CHECK(width(after.rows[i]) < width(before.rows[i]));
        CHECK(after.rows[i].measured > after.rows[i].predicted_80->first);
        CHECK(after.rows[i].measured < after.rows[i].predicted_80->second);
    }
    CHECK(before.macro_mape == Approx(1 - 1 / 1.08).epsilon(1e-3));
    CHECK(after.macro_mape < 0.65 * before.macro_mape);
}

TEST_CASE("bad rows are reported and left out, and a file of nothing else is refused") {
    SyntheticRuns runs = installation();
    runs.predict();
    for (std::size_t i = 0; i < runs.size(); ++i) runs.measure(i, runs.seconds(i));
    core::CsvTable table = some(runs.table(), {0, 1, 2, 3});
    const std::size_t precision = table.column("precision").value();
    table.rows[1].cells[precision] = "int3";
    core::Diagnostics diagnostics;
    const auto found =
        validation::calibrate_installation(table, runs.clusters(), sim::shipped_posterior(), diagnostics);
    REQUIRE(found);
    CHECK(found->used == 3);
    CHECK(found->before.rows[1].status == validation::PredictionStatus::error);
    CHECK(found->before.rows[1].reason.find("int3") != std::string::npos);

    for (core::CsvRow& row : table.rows) row.cells[precision] = "int3";
    CHECK_FALSE(
        validation::calibrate_installation(table, runs.clusters(), sim::shipped_posterior(), diagnostics));
    CHECK(diagnostics.has_errors());
}

TEST_CASE("groups of one maker are one source, and others are their own") {
    CHECK(validation::source_of("dle_ssd300") == validation::source_of("dle_bert_pytorch"));
    CHECK(validation::source_of("dlperf_gpt") != validation::source_of("dle_bert_pytorch"));
    CHECK(validation::source_of("bloom") != validation::source_of("bigscience_1b3"));
    CHECK(validation::source_of("nemo") == validation::source_of("nemo_h100_2024"));
    CHECK(validation::source_of("somebody") == "somebody");
}

TEST_CASE("the 80 % intervals hold about as many visible rows as recorded") {
    const std::string folder = std::string(SHARED_DIR) + "/measurements/";
    if (!std::filesystem::exists(folder + "calibration_2.csv")) {
        WARN("skipped: " << folder << " is not there");
        return;
    }
    core::Diagnostics diagnostics;
    const auto clusters =
        core::load_csv(folder + "clusters_2.csv", validation::cluster_columns(), diagnostics);
    core::CsvTable sample;
    for (const char* file : {"calibration.csv", "calibration_2.csv"}) {
        const auto runs = core::load_csv(folder + file, validation::run_columns(), diagnostics);
        REQUIRE((runs && clusters));
        sample.header = runs->header;
        for (std::size_t i = 3; i < runs->rows.size(); i += 8) sample.rows.push_back(runs->rows[i]);
    }
    const validation::Validation scored = score(sample, *clusters, nullptr);
    REQUIRE(scored.coverage_80);
    // Visible rows took part in the fit, so a little more than four fifths; the band leaves room for
    // constants that move. docs/accuracy.md has the figure of the day.
    CHECK(*scored.coverage_80 > 0.72);
    CHECK(*scored.coverage_80 < 0.95);
    for (const validation::ScoredRow& row : scored.rows) {
        INFO(row.id);
        REQUIRE(row.predicted_80);
        CHECK(row.predicted_80->first < row.predicted);
        CHECK(row.predicted_80->second > row.predicted);
    }
}
