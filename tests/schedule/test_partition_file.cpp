#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/partition_file.h"
#include "schedule/plan/plan_file.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

struct Folder {
    std::filesystem::path path = std::filesystem::temp_directory_path() / "test_partition_file";
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string write(const std::string& name, const std::string& text) const {
        std::ofstream(path / name) << text;
        return (path / name).string();
    }
};

std::string plan_text(const std::string& keys) {
    return "version = 1\n[model]\nname = \"gpt2\"\n[cluster]\ninstance = "
           "\"p3.16xlarge\"\n[plan]\npipeline_parallel = 2\n" +
           keys;
}

// Errors of a plan against a model.
std::string check(const std::string& path, const model::ModelGraph& graph, Plan* plan = nullptr) {
    core::Diagnostics diagnostics;
    if (const auto file = load_plan_file(path, diagnostics)) {
        check_plan(file->plan, graph, 8, nullptr, diagnostics);
        if (plan) *plan = file->plan;
    }
    return core::format(diagnostics);
}

}  // namespace

TEST_CASE("A partition file says the same after writing and reading") {
    PartitionFile file{
        .graph = "a.onnx",
        .graph_hash = "0123",
        .algorithm = "exact",
        .granularity = "unit",
        .unit = "s",
        .objective = 0.25,
        .lower_bound = 0.2,
        .is_proven_optimal = false,
        .first_units = {0, 3},
        .stages = {{"accelerator", {"a", "b"}, {4, 2}, 8, {"plain", "recomputed"}}, {"cpu", {"c"}}}};
    Folder folder;
    core::Diagnostics diagnostics;
    const auto read = load_partition_file(folder.write("p.toml", write_partition_file(file)), diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(read);
    CHECK(*read == file);
}

TEST_CASE("A plan takes its partition from a file beside it, and refuses it when the model changed") {
    Folder folder;
    const model::ModelGraph graph = load_graph("gpt2");
    PartitionFile decision{.graph_hash = model::hash_of(graph), .first_units = {0, 5}, .stages = {}};
    folder.write("decision.toml", write_partition_file(decision));
    const std::string plan_path = folder.write("plan.toml", plan_text("partition = \"decision.toml\"\n"));
    Plan plan;
    CHECK(check(plan_path, graph, &plan).find("error") == std::string::npos);
    CHECK(complete_partition(plan, graph)->first_units == std::vector<std::int32_t>{0, 5});
    const std::string refusal = check(plan_path, load_graph("gpt2-medium"));
    CHECK(refusal.find("was decided for another graph") != std::string::npos);
    CHECK(refusal.find(decision.graph_hash) != std::string::npos);
    // SageMaker's own words for the same.
    const std::string sagemaker =
        folder.write("sagemaker.toml",
                     "version = 1\n[model]\nname = \"gpt2\"\n[cluster]\ninstance = "
                     "\"p3.16xlarge\"\n[plan]\n[plan.sagemaker]\nprocesses_per_host = 2\n"
                     "[plan.sagemaker.parameters]\npartitions = 2\nmicrobatches = 2\nload_partition = "
                     "true\npartition_file = \"decision.toml\"\n");
    CHECK(check(sagemaker, graph, &plan).find("error") == std::string::npos);
    CHECK(plan.partition.first_units == std::vector<std::int32_t>{0, 5});
    // Stages that are no runs of units cannot be a pipeline's.
    folder.write("decision.toml",
                 write_partition_file({.stages = {{"accelerator", {"x"}}, {"accelerator", {"y"}}}}));
    CHECK(check(plan_path, graph).find("no runs of whole units") != std::string::npos);
}

TEST_CASE(
    "SMP's memory_weight is 0.2 for speed and 0.8 for memory, and 0 and 1 balance compute and memory alone") {
    core::Diagnostics diagnostics;
    auto weight = [&](const std::string& parameters) {
        const auto document = core::parse_toml(
            "[sagemaker]\nprocesses_per_host = 2\n[sagemaker.parameters]\npartitions = 2\n" + parameters,
            "p.toml", diagnostics);
        REQUIRE(document);
        const auto plan = read_plan(*document, nullptr, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(plan);
        return plan->memory_weight;
    };
    CHECK(weight("optimize = \"speed\"\n") == 0.2);
    CHECK(weight("optimize = \"memory\"\n") == 0.8);
    CHECK(weight("") == 0.8);
    CHECK(weight("memory_weight = 0.5\n") == 0.5);

    // GPT-2 has most parameters in the embedding (38 of 124 million): balancing memory gives the first stage
    // fewer layers than balancing compute.
    const model::ModelGraph graph = load_graph("gpt2");
    Plan plan;
    plan.layout.pipeline = 2;
    const std::int32_t by_compute = complete_partition(plan, graph)->first_units[1];
    plan.memory_weight = 1;
    const std::int32_t by_memory = complete_partition(plan, graph)->first_units[1];
    CHECK(by_memory != by_compute);
}
