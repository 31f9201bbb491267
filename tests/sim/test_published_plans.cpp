// Plans that their authors published as running must fit in prediction; the figures and their sources are in
// tests/validation/published_plans.csv.
#include <catch2/catch.hpp>
#include <string>

#include "cluster/profile/load.h"
#include "core/csv.h"
#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"

namespace {

struct Case {
    const core::CsvTable& table;
    const core::CsvRow& row;
    std::string text(const char* column) const { return std::string(table.cell(row, column)); }
    std::int64_t integer(const char* column) const {
        return core::parse_integer(table.cell(row, column)).value();
    }
};

core::Value model_of(const Case& c) {
    core::Value model;
    model["family"] = c.text("family");
    model["name"] = c.text("model");
    for (const char* key : {"layers", "hidden", "heads", "ffn", "vocabulary"}) model[key] = c.integer(key);
    if (c.text("family") == "llama" || c.text("family") == "mixtral")
        model["kv_heads"] = c.integer("kv_heads");
    if (c.integer("experts") > 0) {
        model["experts"] = c.integer("experts");
        model["experts_per_token"] = 2;
    }
    // Context parallelism gives every rank its part of each sequence.
    model["sequence_length"] = c.integer("sequence_length") / c.integer("context_parallel");
    return model;
}

schedule::Plan plan_of(const Case& c) {
    schedule::Plan plan;
    plan.layout.tensor = static_cast<int>(c.integer("tensor_parallel"));
    plan.layout.pipeline = static_cast<int>(c.integer("pipeline_parallel"));
    plan.layout.data = static_cast<int>(c.integer("nodes") * 8 / plan.layout.tensor / plan.layout.pipeline);
    plan.sharding =
        c.text("sharding") == "optimizer" ? schedule::Sharding::optimizer : schedule::Sharding::parameters;
    plan.shard_degree = static_cast<int>(c.integer("shard_degree"));
    plan.micro_batch = static_cast<int>(c.integer("micro_batch"));
    plan.micro_batches = static_cast<int>(c.integer("micro_batches"));
    plan.recompute = c.text("recompute") == "full" ? schedule::Recompute::full : schedule::Recompute::none;
    const core::DataType compute = c.text("precision") == "fp16"  ? core::DataType::fp16
                                   : c.text("precision") == "fp8" ? core::DataType::fp8
                                                                  : core::DataType::bf16;
    plan.precision = {.compute = compute,
                      .parameters = core::DataType::bf16,
                      .gradients = core::DataType::bf16,
                      .has_master_parameters = true};
    plan.framework = c.text("framework");
    // The library splits layers over Transformer Engine's regions, tokens between them.
    plan.sequence_parallel = plan.layout.tensor > 1;
    return plan;
}

std::optional<sim::Evaluation> predict(const Case& c, const std::string& instance) {
    core::Diagnostics diagnostics;
    const auto graph = model::load_model(model_of(c), {}, diagnostics);
    core::Value cluster_table;
    cluster_table["instance"] = instance;
    cluster_table["nodes"] = c.integer("nodes");
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE((graph && cluster));
    const schedule::Plan plan = plan_of(c);
    schedule::check_plan(plan, *graph, cluster->device_count(), nullptr, diagnostics);
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(*graph, *cluster, plan, diagnostics, {.memory_only = true});
    INFO(core::format(diagnostics));
    REQUIRE(evaluation.has_value());
    return evaluation;
}

}  // namespace

TEST_CASE("of the 39 plans that AWS published as running at least 37 fit in prediction") {
    core::Diagnostics diagnostics;
    const auto table = core::load_csv(std::string(SOURCE_DIR) + "/tests/validation/published_plans.csv",
                                      {"id", "family", "instance", "nodes"}, diagnostics);
    REQUIRE(table.has_value());
    REQUIRE(table->rows.size() == 39);
    int fitting = 0;
    std::string others;
    for (const core::CsvRow& row : table->rows) {
        const Case c{*table, row};
        const auto evaluation = predict(c, c.text("instance"));
        fitting += evaluation->fits;
        if (!evaluation->fits) others += "\n  " + c.text("id") + ": " + evaluation->tightest;
    }
    INFO("do not fit:" << others);
    CHECK(fitting >= 37);
}

TEST_CASE("what has no room for its state alone does not fit") {
    // GPT-3 175B on one p4d.24xlarge: 16 bytes for each of 175e9 parameters over eight devices are 326 GiB a
    // device (2.8 TB in all; a node has 320 GiB).
    core::Diagnostics diagnostics;
    const auto table = core::load_csv(std::string(SOURCE_DIR) + "/tests/validation/published_plans.csv",
                                      {"id"}, diagnostics);
    REQUIRE(table.has_value());
    for (const core::CsvRow& row : table->rows) {
        const Case c{*table, row};
        if (c.text("id") != "v2best_gpt_175b") continue;
        const auto graph = model::load_model(model_of(c), {}, diagnostics);
        core::Value one_node;
        one_node["instance"] = "p4d.24xlarge";
        one_node["nodes"] = 1;
        const auto cluster = cluster::load_cluster(one_node, diagnostics);
        REQUIRE((graph && cluster));
        schedule::Plan plan;
        plan.layout.data = 8;
        plan.sharding = schedule::Sharding::parameters;
        plan.recompute = schedule::Recompute::full;
        const auto evaluation = sim::evaluate(*graph, *cluster, plan, diagnostics, {.memory_only = true});
        REQUIRE(evaluation.has_value());
        CHECK_FALSE(evaluation->fits);
        CHECK(core::to_gibibytes(evaluation->peak_memory) > 320);
        REQUIRE(evaluation->out_of_memory.has_value());
        CHECK_FALSE(evaluation->out_of_memory->instruction.has_value());  // before the first one
    }
}
