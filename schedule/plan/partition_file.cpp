#include "schedule/plan/partition_file.h"

#include <filesystem>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "schedule/plan/plan.h"

namespace schedule {

std::optional<PartitionFile> load_partition_file(const std::string& path, core::Diagnostics& diagnostics,
                                                 const core::SourceLocation& referrer,
                                                 const std::string& key) {
    const std::size_t errors = diagnostics.error_count();
    const std::optional<core::Value> document = core::load_document(path, diagnostics, referrer, key);
    if (!document) return std::nullopt;
    core::TableReader top(*document, "", diagnostics);
    const std::int64_t version = top.required_integer("version");
    if (diagnostics.error_count() == errors && version != partition_file_version)
        top.error(
            "version",
            fmt::format("version = {} is not a version of partition files that this program reads", version),
            fmt::format("it reads version = {}", partition_file_version));
    const core::Value* table = top.required_table("partition");
    top.finish();
    PartitionFile file;
    if (!table) return std::nullopt;
    core::TableReader reader(*table, "partition", diagnostics);
    file.graph = reader.string("graph", "");
    file.graph_hash = reader.string("graph_hash", "");
    file.algorithm = reader.string("algorithm", "");
    file.granularity = reader.string("granularity", "");
    file.unit = reader.string("unit", "");
    file.objective = reader.optional_real("objective", {.least = 0});
    file.lower_bound = reader.optional_real("lower_bound", {.least = 0});
    file.is_proven_optimal = reader.boolean("proven_optimal", false);
    if (const auto units = reader.optional_integers("first_units", {.least = 0, .greatest = 1 << 30}))
        file.first_units.assign(units->begin(), units->end());
    bool ascends = file.first_units.empty() || file.first_units.front() == 0;
    for (std::size_t i = 1; i < file.first_units.size(); ++i)
        ascends = ascends && file.first_units[i] > file.first_units[i - 1];
    if (!ascends) reader.error("first_units", "first_units does not begin with 0 and ascend");
    if (const core::Value* stages = reader.optional_array("stage"))
        for (std::size_t s = 0; s < stages->size(); ++s) {
            core::TableReader one(stages->items()[s], fmt::format("partition.stage[{}]", s), diagnostics);
            PartitionFile::Stage stage;
            stage.device = one.string("device", "accelerator");
            stage.nodes = one.optional_strings("nodes").value_or(std::vector<std::string>());
            if (const auto replicas = one.optional_integers("replicas", {.least = 1, .greatest = 1 << 30}))
                stage.replicas.assign(replicas->begin(), replicas->end());
            stage.tensor_parallel = core::narrow<std::int32_t>(
                one.integer("tensor_parallel", 1, {.least = 1, .greatest = 1 << 30}));
            stage.configurations =
                one.optional_strings("configurations").value_or(std::vector<std::string>());
            if (!stage.configurations.empty() && stage.configurations.size() != stage.nodes.size())
                one.error("configurations",
                          fmt::format("{} configurations for {} nodes", stage.configurations.size(),
                                      stage.nodes.size()),
                          "one a node, in their order");
            one.finish();
            file.stages.push_back(std::move(stage));
        }
    if (file.stages.empty() && file.first_units.empty())
        reader.error("stage", "the partition has no stages",
                     "give [[partition.stage]] tables, or first_units");
    if (!file.first_units.empty() && !file.stages.empty() && file.first_units.size() != file.stages.size())
        reader.error("first_units", fmt::format("first_units has {} stages, {} are listed",
                                                file.first_units.size(), file.stages.size()));
    reader.finish();
    if (diagnostics.error_count() > errors) return std::nullopt;
    return file;
}

std::string write_partition_file(const PartitionFile& file) {
    core::Value document = core::Value::table(), table = core::Value::table(), stages = core::Value::array();
    document["version"] = partition_file_version;
    auto set = [&](const char* key, const std::string& text) {
        if (!text.empty()) table[key] = text;
    };
    set("graph", file.graph);
    set("graph_hash", file.graph_hash);
    set("algorithm", file.algorithm);
    set("granularity", file.granularity);
    if (file.objective) table["objective"] = *file.objective;
    if (file.lower_bound) table["lower_bound"] = *file.lower_bound;
    set("unit", file.unit);
    table["proven_optimal"] = file.is_proven_optimal;
    if (!file.first_units.empty()) table["first_units"] = file.first_units;
    for (const PartitionFile::Stage& stage : file.stages) {
        core::Value entry = core::Value::table(), nodes = core::Value::array();
        for (const std::string& node : stage.nodes) nodes.append(node);
        entry["device"] = stage.device;
        entry["nodes"] = std::move(nodes);
        if (!stage.replicas.empty()) entry["replicas"] = stage.replicas;
        if (stage.tensor_parallel != 1) entry["tensor_parallel"] = stage.tensor_parallel;
        if (!stage.configurations.empty()) entry["configurations"] = stage.configurations;
        stages.append(std::move(entry));
    }
    table["stage"] = std::move(stages);
    document["partition"] = std::move(table);
    return core::to_toml(document);
}

void read_saved_partition(const std::string& name, const core::SourceLocation& location,
                          const std::string& key, Plan& plan, core::Diagnostics& diagnostics) {
    const std::filesystem::path path(name);
    const std::filesystem::path full =
        path.is_absolute() ? path : std::filesystem::path(location.file).parent_path() / path;
    const std::optional<PartitionFile> file = load_partition_file(full.string(), diagnostics, location, key);
    if (!file) return;
    if (file->first_units.empty())
        diagnostics.error(location, key,
                          fmt::format("the stages of {} are no runs of whole units, which a pipeline needs",
                                      core::in_quotes(name)),
                          "partition the model with `smplan partition --granularity unit`");
    plan.partition = {.first_units = file->first_units, .file = name, .graph_hash = file->graph_hash};
}

}  // namespace schedule
