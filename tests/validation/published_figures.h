// Published measurements in this project's own form (README.md of this folder) as the tables that
// validation::validate takes.
#pragma once

#include <catch2/catch.hpp>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "validation/published_run.h"

struct PublishedFigures {
    core::CsvTable runs, clusters, sweeps;
};

inline core::CsvTable load_table(const std::string& file, const std::vector<std::string>& columns) {
    core::Diagnostics diagnostics;
    const auto table =
        core::load_csv(std::string(SOURCE_DIR) + "/tests/validation/published/" + file, columns, diagnostics);
    for (const core::Diagnostic& entry : diagnostics.entries()) FAIL(file << ": " << entry.message);
    REQUIRE(table.has_value());
    return *table;
}

// "t8 p12 d4 v2 sp" -> 8 for 't'; `otherwise` when the letter does not occur.
inline std::string degree(const std::string& layout, char letter, const std::string& otherwise) {
    std::istringstream words(layout);
    for (std::string word; words >> word;)
        if (word.size() > 1 && word[0] == letter && std::isdigit(static_cast<unsigned char>(word[1])))
            return word.substr(1);
    return otherwise;
}

inline std::pair<std::string, std::string> halves(const std::string& text, char between) {
    const std::size_t at = text.find(between);
    return at == std::string::npos ? std::pair(text, std::string())
                                   : std::pair(text.substr(0, at), text.substr(at + 1));
}

inline PublishedFigures published_figures() {
    const core::CsvTable architectures =
        load_table("architectures.csv", {"architecture", "family", "layers", "hidden", "heads", "kv_heads",
                                         "ffn", "vocabulary", "tokens", "ties_embeddings", "pixels"});
    const core::CsvTable given = load_table(
        "runs.csv", {"run", "group", "architecture", "precision", "optimizer", "cluster", "devices", "layout",
                     "schedule", "sharded", "batch", "recomputes", "attention", "code", "settings", "step_s",
                     "peak_gib", "scatter_pct", "source"});
    const core::CsvTable machines =
        load_table("clusters.csv", {"cluster", "device", "usable_gib", "node", "inside", "inside_gbs",
                                    "cards", "card_gbps", "transport", "gpudirect", "instance", "source"});
    std::map<std::string, const core::CsvRow*> architecture_of;
    for (const core::CsvRow& row : architectures.rows)
        architecture_of[std::string(architectures.cell(row, "architecture"))] = &row;

    PublishedFigures figures;
    figures.runs.file = given.file;
    figures.runs.header = validation::run_columns();
    figures.runs.header.emplace_back("notes");
    for (const core::CsvRow& row : given.rows) {
        const auto cell = [&](const char* column) { return std::string(given.cell(row, column)); };
        const core::CsvRow* architecture = architecture_of[cell("architecture")];
        REQUIRE(architecture != nullptr);
        const auto shape = [&](const char* column) {
            return std::string(architectures.cell(*architecture, column));
        };
        const auto [nodes, devices] = halves(cell("devices"), 'x');
        const auto [micro_batch, micro_batches] = halves(cell("batch"), 'x');
        const auto [sharding, shard_degree] = halves(cell("sharded"), '/');
        const std::string layout = cell("layout");
        const std::string data = degree(layout, 'd', "1");
        std::string notes;
        const std::string settings = cell("settings");
        const auto is_set = [&](const char* word) { return settings.find(word) != std::string::npos; };
        if (is_set("reduces-fp32")) notes += "fp32 gradient reduction; ";
        if (is_set("reduces-bf16")) notes += "bf16 gradient reduction; ";
        if (is_set("reduces-after-backward")) notes += "reduction after backward; ";
        if (is_set("reduces-in-buckets")) notes += "bucketed overlap; ";
        if (is_set("peak-of-process")) notes += "nvidia-smi";
        const std::map<std::string, std::string> cells = {
            {"id", cell("run")},
            {"group", cell("group")},
            {"model", shape("family")},
            {"layers", shape("layers")},
            {"hidden", shape("hidden")},
            {"heads", shape("heads")},
            {"kv_heads", shape("kv_heads")},
            {"ffn", shape("ffn")},
            {"vocab", shape("vocabulary")},
            {"seq_len", shape("tokens")},
            {"tied_embeddings", shape("ties_embeddings")},
            {"image_size", shape("pixels")},
            {"precision", cell("precision")},
            {"optimizer", cell("optimizer")},
            {"cluster", cell("cluster")},
            {"nodes", nodes},
            {"gpus_per_node", devices},
            {"tensor_parallel", degree(layout, 't', "1")},
            {"pipeline_parallel", degree(layout, 'p', "1")},
            {"virtual_stages", degree(layout, 'v', "1")},
            {"data_parallel", data},
            {"sharding", sharding.empty() ? "none" : sharding},
            {"shard_degree", shard_degree},
            {"micro_batch", micro_batch},
            {"global_batch",
             std::to_string(std::stoll(micro_batch) * std::stoll(micro_batches) * std::stoll(data))},
            {"grad_accumulation", micro_batches},
            {"recompute", cell("recomputes")},
            {"schedule", cell("schedule")},
            {"sequence_parallel", layout.ends_with(" sp") ? "yes" : "no"},
            {"attention", cell("attention")},
            {"framework", cell("code")},
            {"measured_step_s", cell("step_s")},
            {"measured_peak_gib", cell("peak_gib")},
            {"notes", notes},
        };
        core::CsvRow made{row.line, {}};
        for (const std::string& column : figures.runs.header) made.cells.push_back(cells.at(column));
        figures.runs.rows.push_back(std::move(made));
    }

    const std::pair<const char*, const char*> names[] = {{"id", "cluster"},
                                                         {"gpu", "device"},
                                                         {"gpu_memory_gib", "usable_gib"},
                                                         {"gpus_per_node", "node"},
                                                         {"intra_node", "inside"},
                                                         {"intra_node_gbs_per_dir", "inside_gbs"},
                                                         {"nics_per_node", "cards"},
                                                         {"gbit_per_nic", "card_gbps"},
                                                         {"transport", "transport"},
                                                         {"gpudirect", "gpudirect"},
                                                         {"ec2_instance", "instance"}};
    figures.clusters.file = machines.file;
    for (const auto& [name, column] : names) figures.clusters.header.emplace_back(name);
    for (const core::CsvRow& row : machines.rows) {
        core::CsvRow made{row.line, {}};
        for (const auto& [name, column] : names) made.cells.emplace_back(machines.cell(row, column));
        figures.clusters.rows.push_back(std::move(made));
    }

    // A sweep: one architecture, cluster, number of devices and global batch under five plans or more.
    std::map<std::string, std::pair<std::set<std::string>, std::string>> sweeps;
    for (std::size_t i = 0; i < given.rows.size(); ++i) {
        const auto cell = [&](const char* column) { return std::string(given.cell(given.rows[i], column)); };
        const std::string batch = std::string(figures.runs.cell(figures.runs.rows[i], "global_batch"));
        auto& [plans, runs] = sweeps[cell("group") + ' ' + cell("architecture") + ' ' + cell("cluster") +
                                     ' ' + cell("devices") + ' ' + batch];
        plans.insert(cell("layout") + cell("schedule") + cell("sharded") + cell("batch") +
                     cell("recomputes"));
        runs += cell("run") + ' ';
    }
    figures.sweeps.header = {"sweep_id", "ids"};
    for (const auto& [name, members] : sweeps)
        if (members.first.size() >= 5 && !name.starts_with("pollux") && !name.starts_with("fsdp"))
            figures.sweeps.rows.push_back({0, {name, members.second}});
    return figures;
}
