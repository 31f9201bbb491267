#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/framework/framework_memory.h"
#include "sim/cost/framework/framework_name.h"
#include "validation/published_run.h"
#include "validation/validate.h"

TEST_CASE("published measurements are predicted, every row, within a few per cent") {
    const std::string folder = std::string(SHARED_DIR) + "/measurements/";
    if (!std::filesystem::exists(folder + "calibration.csv")) {
        WARN("skipped: " << folder << " is not there");
        return;
    }
    core::Diagnostics diagnostics;
    const auto runs = core::load_csv(folder + "calibration.csv", validation::run_columns(), diagnostics);
    const auto clusters = core::load_csv(folder + "clusters.csv", validation::cluster_columns(), diagnostics);
    const auto sweeps = core::load_csv(folder + "sweeps.csv", {"sweep_id", "ids"}, diagnostics);
    REQUIRE((runs && clusters && sweeps));
    const auto validation = validation::validate(*runs, *clusters, &*sweeps, diagnostics);
    REQUIRE(validation.has_value());
    REQUIRE(validation->rows.size() == runs->rows.size());
    for (const validation::ScoredRow& row : validation->rows) {
        INFO(row.id << ": " << row.reason);
        CHECK(row.status == validation::PredictionStatus::ok);
        CHECK(row.predicted.value > 0);
    }
    // docs/accuracy.md has the figures of the day; these leave room for changes that trade groups against
    // each other.
    CHECK(validation->macro_mape < 0.085);
    REQUIRE(validation->memory_mape.has_value());
    CHECK(*validation->memory_mape < 0.06);
    for (const validation::GroupScore& group : validation->groups) {
        INFO(group.group);
        CHECK(group.mape < 0.22);
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

TEST_CASE("frameworks are told apart by their names, and an unknown one is an eager PyTorch") {
    CHECK(sim::framework_traits("Megatron-LM v3").name == "Megatron-LM");
    CHECK(sim::framework_traits("Megatron-DeepSpeed 2023").name == "Megatron-DeepSpeed");
    CHECK(sim::framework_traits("torchtitan, torch.compile").name == "PyTorch (compiled)");
    CHECK(sim::framework_traits("torchtitan").name == "PyTorch (eager)");
    CHECK(sim::framework_traits("JAX").name == "XLA");
    CHECK(sim::framework_traits("MaxText").name == "XLA");
    CHECK(sim::framework_traits("GPT-NeoX").name == "Megatron-DeepSpeed");
    CHECK(sim::framework_traits("MindSpore").name == "graph engine");
    CHECK(sim::framework_traits("somebody's trainer").name == "PyTorch (eager)");
    CHECK(sim::framework_traits("llm.c (CUDA)").name == "C++ and CUDA");
    // What a code runs on says nothing about it.
    CHECK(sim::framework_traits("DeepSpeed, CUDA 11.8").name == "DeepSpeed");
    CHECK(sim::framework_traits("Megatron-LM, CUDA 12").name == "Megatron-LM");
    CHECK(sim::FrameworkName("somebody's trainer").is_unknown());
    for (const char* name : {"", "PyTorch FSDP", "DeepSpeed ZeRO-3", "torchtitan", "Megatron-Core", "MaxText",
                             "SageMaker SMP v2"})
        CHECK_FALSE(sim::FrameworkName(name).is_unknown());
    // Time and memory know the same names.
    for (const auto& [one, other] : {std::pair("MaxText", "JAX"),
                                     {"LiBai", "OneFlow"},
                                     {"GPT-NeoX", "Megatron-DeepSpeed"},
                                     {"mcore", "Megatron-LM"}}) {
        INFO(one << " and " << other);
        const sim::FrameworkMemory a = sim::framework_memory(one), b = sim::framework_memory(other);
        CHECK(a.keeps_whole_gradients == b.keeps_whole_gradients);
        CHECK(a.copies_gradients_into_buckets == b.copies_gradients_into_buckets);
        CHECK(a.keeps_stage_outputs == b.keeps_stage_outputs);
        CHECK(a.update_bytes == b.update_bytes);
        CHECK(a.process_memory == b.process_memory);
    }
    // Where a plan does not name its attention, it is that of the code's year.
    CHECK(sim::framework_traits("torchtitan").attention == model::AttentionImplementation::flash);
    CHECK(sim::framework_traits("PyTorch 2020").attention == model::AttentionImplementation::unfused);
    CHECK(sim::framework_traits("Megatron-LM 2021").attention ==
          model::AttentionImplementation::fused_softmax);
    // Nothing said: what the device profile has, nothing added.
    CHECK(sim::framework_traits("").dispatch.value == 0);
    CHECK(sim::framework_traits("").memory_passes == 1);
}
