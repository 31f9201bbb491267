#include "interop/import_place.h"

#include <algorithm>

#include <fmt/core.h>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"

namespace interop {

namespace {

const core::Value* member(const core::Value* table, const char* key) {
    return table ? table->find(key) : nullptr;
}

bool is_positive_integer(const core::Value* value) {
    return value && value->kind() == core::Value::Kind::integer && value->integer() > 0 &&
           value->integer() <= (1 << 20);
}

}  // namespace

const core::Value* SageMakerBlock::hyperparameter(std::initializer_list<const char*> names) const {
    for (const char* name : names)
        if (const core::Value* found = member(hyperparameters, name)) return found;
    return nullptr;
}

SageMakerBlock find_modelparallel(const core::Value& document, const std::vector<std::string>& keys) {
    SageMakerBlock block;
    const core::Value* distribution = document.find("distribution");
    if (!distribution) distribution = &document;
    const core::Value* smdistributed = member(distribution, "smdistributed");
    const core::Value* modelparallel = member(smdistributed ? smdistributed : distribution, "modelparallel");
    block.parameters = member(modelparallel ? modelparallel : distribution, "parameters");
    const auto has_keys = [&](const core::Value* table) {
        return table && table->is_table() &&
               std::any_of(keys.begin(), keys.end(),
                           [&](const std::string& key) { return table->find(key) != nullptr; });
    };
    if (!block.parameters && has_keys(modelparallel)) block.parameters = modelparallel;
    if (!block.parameters && has_keys(distribution)) block.parameters = distribution;
    if (block.parameters && !block.parameters->is_table()) block.parameters = nullptr;
    block.mpi = member(distribution, "mpi");
    block.hyperparameters = document.find("hyperparameters");
    block.instance_type = document.find("instance_type");
    block.instance_count = document.find("instance_count");
    return block;
}

ImportLocation import_place(const SageMakerBlock& block, const ImportOptions& options,
                            const std::string& path, core::Diagnostics& diagnostics) {
    const core::SourceLocation file{path, 0, 0};
    ImportLocation place;
    place.file.path = path;
    place.file.model = core::Value::table();
    place.file.model["name"] = options.model.empty() ? "REPLACE-WITH-A-MODEL" : options.model;
    if (options.model.empty())
        diagnostics.warning(file, "model.name",
                            "the file does not say which model it trains: model.name is a placeholder",
                            "give --model");
    if (options.sequence_length) place.file.model["sequence_length"] = *options.sequence_length;

    std::string instance = options.instance;
    if (instance.empty() && block.instance_type && block.instance_type->is_string()) {
        instance = block.instance_type->string();
        if (instance.starts_with("ml.")) instance.erase(0, 3);
    }
    const bool is_known = !instance.empty();
    place.file.cluster = core::Value::table();
    place.file.cluster["instance"] = is_known ? instance : "REPLACE-WITH-AN-INSTANCE";
    if (!is_known)
        diagnostics.warning(
            file, "cluster.instance",
            "the file does not say on which instances it runs: cluster.instance is a placeholder",
            "give --instance");
    if (options.nodes) place.nodes = *options.nodes;
    else if (is_positive_integer(block.instance_count)) place.nodes = block.instance_count->integer();
    else
        diagnostics.warning(file, "cluster.nodes",
                            "the file does not say on how many instances it runs: nodes = 1 is a placeholder",
                            "give --nodes");
    place.file.cluster["nodes"] = place.nodes;

    const core::Value* processes = member(block.mpi, "processes_per_host");
    if (options.processes_per_node) {
        place.processes_per_node = *options.processes_per_node;
    } else if (is_positive_integer(processes)) {
        place.processes_per_node = processes->integer();
    } else if (is_known) {
        // One process a device.
        if (const auto known = cluster::load_instance(instance, diagnostics))
            place.processes_per_node = known->devices;
    }
    return place;
}

}  // namespace interop
