#include <algorithm>
#include <catch2/catch.hpp>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/report.h"
#include "sim/scenario.h"

namespace {

const std::string scenario_path = std::string(SOURCE_DIR) + "/scenarios/llama2_7b_p4d.toml";

core::Value document_of(const std::string& path) {
    core::Diagnostics diagnostics;
    std::optional<core::Value> document = sim::load_scenario_document(path, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document.has_value());
    return *document;
}

// The value at "plan.micro_batch" and such; null when absent.
const core::Value* at(const core::Value& document, const std::string& section, const std::string& key) {
    const core::Value* table = document.find(section);
    return table ? table->find(key) : nullptr;
}

std::string written(const std::string& name, const std::string& text) {
    const std::string path = std::string(BINARY_DIR) + "/" + name;
    core::write_file_atomically(path, text);
    return path;
}

core::Diagnostics refused(const std::string& text) {
    core::Diagnostics diagnostics;
    core::Value document = document_of(scenario_path);
    if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics)) {
        sim::assign(document, *assignment, diagnostics);
        if (!diagnostics.has_errors()) sim::read_scenario(document, scenario_path, diagnostics);
    }
    return diagnostics;
}

}  // namespace

TEST_CASE("every scenario that is shipped asks a question, can be read and evaluated") {
    for (const char* name : {"bert_large_p3", "bert_large_p3dn", "gpt2_xl_g5", "gpt3_175b_128_p4d",
                             "gpt_neox_20b_interleaved_p4d", "llama2_70b_p4d", "llama2_7b_p4d",
                             "mnist_p3_8xlarge", "resnet50_g4dn", "t5_3b_p3dn"}) {
        const std::string path = std::string(SOURCE_DIR) + "/scenarios/" + name + ".toml";
        core::Diagnostics diagnostics;
        const std::optional<sim::Scenario> scenario =
            sim::read_scenario(document_of(path), path, diagnostics);
        INFO(path << "\n" << core::format(diagnostics));
        REQUIRE(scenario.has_value());
        REQUIRE_FALSE(scenario->question.empty());
        const std::optional<sim::Evaluation> evaluation = sim::evaluate(
            scenario->graph, scenario->cluster, scenario->file.plan, diagnostics, {.most_micro_batches = 64});
        REQUIRE(evaluation.has_value());
        REQUIRE(evaluation->step_time.value > 0);
        REQUIRE(evaluation->mfu > 0);
        REQUIRE(evaluation->mfu < 0.8);
    }
}

TEST_CASE("values on the command line are typed as TOML types them, bare words are strings") {
    core::Diagnostics diagnostics;
    core::Value document = document_of(scenario_path);
    for (const char* text : {"plan.micro_batch=4", "plan.sequence_parallel=true", "plan.schedule=1f1b",
                             "cluster.instance=p4de.24xlarge", "plan.partition=[0, 3]",
                             "training.learning_rate = 1e-4", "cluster.network_bandwidth=\"800Gbps\""}) {
        const auto assignment = sim::parse_assignment(text, "--set", diagnostics);
        REQUIRE(assignment.has_value());
        sim::assign(document, *assignment, diagnostics);
    }
    REQUIRE_FALSE(diagnostics.has_errors());
    REQUIRE(at(document, "plan", "micro_batch")->integer() == 4);
    REQUIRE(at(document, "plan", "sequence_parallel")->boolean());
    REQUIRE(at(document, "plan", "schedule")->string() == "1f1b");
    REQUIRE(at(document, "cluster", "instance")->string() == "p4de.24xlarge");
    REQUIRE(at(document, "plan", "partition")->items().size() == 2);
    REQUIRE(at(document, "training", "learning_rate")->number() == 1e-4);
    REQUIRE(at(document, "cluster", "network_bandwidth")->string() == "800Gbps");
    REQUIRE(at(document, "plan", "micro_batch")->location.file == "command line");
}

TEST_CASE("a wrong assignment names the command line, the key and what to do") {
    struct Case {
        const char* text;
        const char* key;
        const char* hint;
    };
    for (const Case& c :
         {Case{"plan.micro_batch=x", "plan.micro_batch", "integer"},
          Case{"plan.micro_bach=3", "plan.micro_bach", "micro_batch"},
          Case{"micro_batch=3", "micro_batch", "plan.micro_batch"},
          Case{"clustr.nodes=2", "clustr.nodes", "cluster.nodes"},
          Case{"cluster.nodes=0", "cluster.nodes", ""}, Case{"plan=3", "plan", "member"},
          Case{"foo", "--set", "--set plan.micro_batch"}, Case{"plan.micro_batch=", "--set", ""},
          Case{"plan.micro_batch.deep=1", "plan.micro_batch.deep", ""},
          Case{"plan.schedule=[1,", "plan.schedule", "TOML"},
          Case{"cluster.instance=p4.24xlarge", "cluster.instance", ""}}) {
        const core::Diagnostics diagnostics = refused(c.text);
        INFO(c.text << "\n" << core::format(diagnostics));
        REQUIRE(diagnostics.has_errors());
        REQUIRE(diagnostics.entries().front().location.file == "command line");
        REQUIRE(diagnostics.entries().front().key == c.key);
        REQUIRE((diagnostics.entries().front().message + diagnostics.entries().front().hint).find(c.hint) !=
                std::string::npos);
    }
}

TEST_CASE("a sweep separates values at commas outside lists and quotes") {
    core::Diagnostics diagnostics;
    REQUIRE(sim::parse_sweep("plan.micro_batch=1,2,4", "--sweep", diagnostics).size() == 3);
    const std::vector<sim::Assignment> lists =
        sim::parse_sweep("plan.partition=[0,3],[0,4],\"a,b\"", "--sweep", diagnostics);
    REQUIRE(lists.size() == 3);
    REQUIRE(lists[1].value.items()[1].integer() == 4);
    REQUIRE(lists[2].value.string() == "a,b");
    REQUIRE_FALSE(diagnostics.has_errors());
    REQUIRE(sim::parse_sweep("plan.micro_batch=1,,4", "--sweep", diagnostics).empty());
    REQUIRE(diagnostics.has_errors());
}

TEST_CASE(
    "what_if is merged over the file, and a plan may be another file whose parts the scenario replaces") {
    const std::string plan = written(
        "scenario_plan.toml",
        "version = 1\n[model]\nname = \"gpt2\"\n[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 1\n"
        "[plan]\ndata_parallel = 8\nmicro_batch = 2\nmicro_batches = 3\n[prediction]\nstep_time_s = 1.0\n");
    const std::string path =
        written("scenario.toml",
                "question = \"What if?\"\nplan = \"scenario_plan.toml\"\n[cluster]\ninstance = "
                "\"p4de.24xlarge\"\nnodes = 1\n"
                "[what_if.plan]\nmicro_batch = 4\n[what_if.cluster]\nnetwork_bandwidth = \"800Gbps\"\n");
    core::Diagnostics diagnostics;
    const std::optional<sim::Scenario> scenario = sim::read_scenario(document_of(path), path, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(scenario.has_value());
    REQUIRE(scenario->question == "What if?");
    REQUIRE(scenario->graph.name == "gpt2");
    REQUIRE(scenario->cluster.instance.name == "p4de.24xlarge");
    REQUIRE(scenario->file.plan.micro_batch == 4);
    REQUIRE(scenario->file.plan.micro_batches == 3);
    REQUIRE(scenario->cluster.instance.network_bandwidth.value == 100e9);
}

TEST_CASE("what_if with an unknown section is refused at its place") {
    const std::string path = written(
        "scenario_bad.toml", "question = \"?\"\n[model]\nname = \"gpt2\"\n[what_if.clustr]\nnodes = 2\n");
    core::Diagnostics diagnostics;
    REQUIRE_FALSE(sim::load_scenario_document(path, diagnostics).has_value());
    REQUIRE(diagnostics.entries().front().location.line == 4);
    REQUIRE(diagnostics.entries().front().hint.find("what_if.cluster") != std::string::npos);
}

TEST_CASE("a sweep's table has a line for every point, invalid ones with the reason, and reads back as CSV") {
    std::vector<sim::SweepRow> rows(3);
    for (int i = 0; i < 3; ++i)
        rows[static_cast<std::size_t>(i)].set = {{"plan.micro_batch", std::to_string(1 << i)}};
    for (int i = 0; i < 2; ++i) {
        core::Value result = core::Value::table();
        result["step_time_s"] = 0.5 * (i + 1);
        result["fits"] = i == 0;
        rows[static_cast<std::size_t>(i)].result = result;
    }
    rows[2].diagnostics.error({}, "plan.micro_batch", "too large, by far");
    core::Diagnostics diagnostics;
    const std::optional<core::CsvTable> table = core::parse_csv(
        sim::sweep_csv(rows), "sweep", {"plan.micro_batch", "step_time_s", "fits", "error"}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(table.has_value());
    REQUIRE(table->rows.size() == 3);
    REQUIRE(table->cell(table->rows[1], "step_time_s") == "1.0");
    REQUIRE(table->cell(table->rows[1], "fits") == "false");
    REQUIRE(table->cell(table->rows[2], "error") == "too large, by far");
    const std::string text = sim::sweep_text(rows);
    REQUIRE(std::count(text.begin(), text.end(), '\n') == 4);
    REQUIRE(text.find("does not fit") != std::string::npos);
    const core::Value value = sim::sweep_value(rows);
    REQUIRE(value.find("sweep")->items().size() == 3);
    REQUIRE(value.find("sweep")->items()[2].find("errors") != nullptr);
}
