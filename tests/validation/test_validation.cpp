#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework_catalogue.h"
#include "validation/published_framework.h"
#include "validation/published_run.h"
#include "validation/validate.h"

TEST_CASE("published measurements are predicted, every row, within a few per cent, and fit") {
    const std::string folder = std::string(SHARED_DIR) + "/measurements/";
    if (!std::filesystem::exists(folder + "calibration_2.csv")) {
        WARN("skipped: " << folder << " is not there");
        return;
    }
    core::Diagnostics diagnostics;
    auto runs = core::load_csv(folder + "calibration.csv", validation::run_columns(), diagnostics);
    const auto later = core::load_csv(folder + "calibration_2.csv", validation::run_columns(), diagnostics);
    const auto clusters =
        core::load_csv(folder + "clusters_2.csv", validation::cluster_columns(), diagnostics);
    REQUIRE((runs && later && clusters));
    REQUIRE(runs->header == later->header);
    runs->rows.insert(runs->rows.end(), later->rows.begin(), later->rows.end());
    const auto validation = validation::validate(*runs, *clusters, nullptr, diagnostics);
    REQUIRE(validation.has_value());
    REQUIRE(validation->rows.size() == runs->rows.size());
    std::size_t not_fitting = 0;
    for (const validation::ScoredRow& row : validation->rows) {
        INFO(row.id << ": " << row.reason);
        CHECK(row.status == validation::PredictionStatus::ok);
        CHECK(row.predicted.value > 0);
        if (row.reason.find("predicted not to fit") != std::string::npos) ++not_fitting;
    }
    // They all ran. docs/accuracy.md names those that should not have.
    CHECK(static_cast<double>(not_fitting) <= 0.01 * static_cast<double>(runs->rows.size()));
    // docs/accuracy.md has the figures of the day; these leave a little room for changes that trade groups
    // against each other.
    CHECK(validation->macro_mape < 0.062);
    REQUIRE(validation->memory_mape.has_value());
    CHECK(*validation->memory_mape < 0.06);
    for (const validation::GroupScore& group : validation->groups) {
        INFO(group.group);
        CHECK(group.mape < 0.125);
    }
}

TEST_CASE("a wrong cell spoils its own row only, and says where it stands") {
    const std::string folder = std::string(SHARED_DIR) + "/measurements/";
    if (!std::filesystem::exists(folder + "calibration.csv")) {
        WARN("skipped: no ../shared/measurements");
        return;
    }
    core::Diagnostics diagnostics;
    auto runs = core::load_csv(folder + "calibration.csv", validation::run_columns(), diagnostics);
    const auto clusters = core::load_csv(folder + "clusters.csv", validation::cluster_columns(), diagnostics);
    REQUIRE(runs);
    runs->rows.resize(4);
    const auto cell = [&](std::size_t row, const char* column) -> std::string& {
        return runs->rows[row].cells[runs->column(column).value()];
    };
    cell(0, "precision") = "int3";
    cell(0, "micro_batch") = "two";
    cell(1, "cluster") = "nowhere";
    cell(2, "model") = "perceptron";
    const auto validation = validation::validate(*runs, *clusters, nullptr, diagnostics);
    REQUIRE(validation);
    REQUIRE_FALSE(diagnostics.has_errors());
    CHECK(validation->rows[0].status == validation::PredictionStatus::error);
    // All that is wrong with a row, each at its cell.
    CHECK(validation->rows[0].reason.find("calibration.csv:2:") != std::string::npos);
    CHECK(validation->rows[0].reason.find("precision = 'int3' is not one") != std::string::npos);
    CHECK(validation->rows[0].reason.find("micro_batch = 'two' is not a whole") != std::string::npos);
    CHECK(validation->rows[1].status == validation::PredictionStatus::error);
    CHECK(validation->rows[1].reason.find("nowhere") != std::string::npos);
    CHECK(validation->rows[2].status == validation::PredictionStatus::unsupported);
    CHECK(validation->rows[3].status == validation::PredictionStatus::ok);
}

TEST_CASE("a validation that is stopped scores the rows so far as a file of these alone") {
    const std::string folder = SOURCE_DIR "/tests/golden/runs/";
    core::Diagnostics diagnostics;
    const auto runs = core::load_csv(folder + "own_runs.csv", validation::run_columns(), diagnostics);
    const auto clusters =
        core::load_csv(folder + "own_clusters.csv", validation::cluster_columns(), diagnostics);
    REQUIRE((runs && clusters));
    REQUIRE(runs->rows.size() == 4);
    core::CsvTable first_two = *runs, sweeps;
    first_two.rows.resize(2);
    sweeps.header = {"sweep_id", "ids"};
    sweeps.rows = {{2, {"whole", "OWN-1 OWN-2"}}, {3, {"cut", "OWN-2 OWN-3"}}};

    validation::ValidateOptions options;
    options.threads = 1;
    int asked = 0;
    options.is_stopped = [&] { return ++asked > 2; };
    const auto stopped = validation::validate(*runs, *clusters, &sweeps, diagnostics, options);
    const auto alone = validation::validate(first_two, *clusters, nullptr, diagnostics);
    REQUIRE((stopped && alone));
    CHECK(stopped->left_out == 2);
    REQUIRE(stopped->rows.size() == 2);
    CHECK(stopped->rows[1].id == "OWN-2");
    CHECK(stopped->rows[1].predicted == alone->rows[1].predicted);
    CHECK(stopped->macro_mape == alone->macro_mape);
    CHECK(stopped->groups.front().rows == 2);
    // A sweep without one of its rows would rank other plans.
    REQUIRE(stopped->sweeps.size() == 1);
    CHECK(stopped->sweeps.front().id == "whole");
    CHECK(validation::validate(*runs, *clusters, &sweeps, diagnostics)->left_out == 0);
}

TEST_CASE("constants of the cost model lie in their physical ranges and say where they come from") {
    const sim::CostConstants constants;
    for (const sim::NamedConstant& constant : sim::named_constants()) {
        INFO(constant.name);
        CHECK(constants.*constant.value >= constant.least);
        CHECK(constants.*constant.value <= constant.greatest);
        CHECK(std::string(constant.meaning).size() > 5);
        CHECK(std::string(constant.source).size() > 3);
    }
    CHECK(sizeof(sim::CostConstants) ==
          sim::named_constants().size() * sizeof(double));  // none is left out of the list
}

TEST_CASE("the free text of a published row is taken for a profile by whole words and dates") {
    const auto of = [](const char* text, int usual = 2021) {
        return validation::framework_of(text, usual).profile;
    };
    // Texts of published rows.
    for (const auto& [text, profile] : {std::pair("Alpa (JAX/XLA) 2022", "alpa"),
                                        {"DeepSpeed ZeRO-3", "deepspeed-2021"},
                                        {"MXNet (NGC)", "mxnet-ngc"},
                                        {"MXNet gluon-cv", "mxnet"},
                                        {"Megatron-DeepSpeed 2021", "megatron-deepspeed-2021"},
                                        {"Megatron-DeepSpeed 2022", "megatron-deepspeed"},
                                        {"Megatron-LM 2021", "megatron-lm-2021"},
                                        {"Megatron-LM @8aa4619", "megatron-lm-2021"},
                                        {"Megatron-LM fork (zero-bubble)", "zero-bubble"},
                                        {"NGC PyTorch 20.03", "pytorch-ngc-2020"},
                                        {"NGC TensorFlow 1.x", "tensorflow-1"},
                                        {"NGC TensorFlow 1.x XLA (bsz 224)", "tensorflow-1-compiled"},
                                        {"NeMo 2024 (Transformer Engine)", "nemo"},
                                        {"NeMo-Megatron 23.07", "nemo-2023"},
                                        {"PyTorch (NGC)", "pytorch-ngc"},
                                        {"PyTorch (baseline of the DeepSpeed post)", "pytorch-2020"},
                                        {"PyTorch + apex (NGC 20.06)", "pytorch-apex-2020"},
                                        {"PyTorch + apex (NGC 21.11)", "pytorch-apex"},
                                        {"PyTorch 1.11 DDP", "pytorch-1"},
                                        {"PyTorch 2.3 DDP", "pytorch"},
                                        {"TensorFlow 1 + Horovod (NGC)", "tensorflow-horovod"},
                                        {"llm-foundry/Composer PyTorch FSDP", "llm-foundry"},
                                        {"llm.c (CUDA)", "llm.c"},
                                        {"torchtitan FSDP2", "torchtitan"},
                                        {"torchtitan FSDP2 + torch.compile", "torchtitan-compiled"}}) {
        INFO(text);
        CHECK(of(text) == profile);
    }
    // Texts that no row has.
    for (const auto& [text, profile] : {std::pair("MaxText 2024 (JAX)", "xla"),
                                        {"DeepSpeed ZeRO-3 2024", "deepspeed"},
                                        {"Megatron-LM v0.8, 2024", "megatron-lm"},
                                        {"Megatron-LM v3", "megatron-lm-2022"},
                                        {"Megatron-Core 2023", "megatron-lm"},
                                        {"mcore", "megatron-lm"},
                                        {"PyTorch 2.3 FSDP", "pytorch-fsdp"},
                                        {"NeMo 24.05", "nemo"},
                                        {"NeMo 1.20", "nemo-2023"},
                                        {"Megatron-Bridge (fp8)", "nemo"},
                                        {"Hugging Face Accelerate + DeepSpeed 0.14", "deepspeed"},
                                        {"Levanter (JAX)", "xla"},
                                        {"GPT-NeoX", "megatron-deepspeed-2021"},
                                        {"LiBai", "oneflow"},
                                        {"MindSpore", "graph-engine"},
                                        {"C++ and CUDA", "llm.c"},
                                        {"PyTorch 20.06-py3", "pytorch-2020"},
                                        {"SageMaker SMP v2", "pytorch-fsdp"}}) {
        INFO(text);
        CHECK(of(text) == profile);
    }
    // A code without a date is of the year of its device or model.
    CHECK(of("Megatron-LM", 2024) == "megatron-lm");
    CHECK(of("Megatron-LM", 2023) == "megatron-lm-2023");
    CHECK(of("Colossal-AI", 2024) == "pytorch");
    CHECK(of("axonn", 2024) == "pytorch");
    CHECK(validation::usual_year_of("H100", "gpt") > validation::usual_year_of("A100", "llama"));
    CHECK(validation::usual_year_of("A100", "llama") > validation::usual_year_of("A100", "gpt"));
    // What a code runs on says nothing about it, and parts of words are none.
    CHECK(of("DeepSpeed, CUDA 11.8") == of("DeepSpeed"));
    CHECK(of("Megatron-LM, CUDA 12") == of("Megatron-LM"));
    CHECK(of("PyTorch titanium") == of("PyTorch"));
    CHECK(of("Autocomposer") == of("somebody's trainer"));
    CHECK(of("PyTorch, build 20.08") == of("PyTorch"));
    CHECK(of("somebody's trainer", 2024) == "pytorch");
}

TEST_CASE("what is taken for a free text says by which word and date, and every such profile is there") {
    const auto because = [](const char* text) { return validation::framework_of(text, 2021).because; };
    CHECK(because("NeMo-Megatron 23.07") ==
          "framework 'NeMo-Megatron 23.07' is taken for the profile nemo-2023, by 'nemo' and '23.07'");
    CHECK(because("PyTorch 1.11 DDP").ends_with("by 'pytorch' and 'pytorch 1.11'"));
    CHECK(because("Megatron-LM")
              .ends_with("by 'megatron'; it has no date: 2021 as usual for device and model"));
    CHECK(because("Autocomposer").find("a plain eager PyTorch: it has no known word") != std::string::npos);
    for (const std::string& profile : validation::profiles_of_published_frameworks()) {
        INFO(profile);
        CHECK(sim::framework_catalogue().find(profile) != nullptr);
    }
}
