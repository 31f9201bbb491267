// What stands in a checkpoint's manifest.json: which training it is of, how far it was, and its files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/backend/loss_scaling.h"
#include "exec/checkpoint/rank_file.h"

namespace exec {

struct CheckpointManifest {
    std::int64_t step = 0;         // completed
    std::int64_t next_sample = 0;  // the first that no step has seen
    std::uint64_t seed = 0;
    std::string model, model_hash, program_hash, plan,
        data;                   // plan: degrees in words; data: what samples come from
    std::string data_identity;  // DataSource::identity(); empty in a manifest of version 1
    std::string recipe;  // recipe_of (training_state.h), of one plan after the other; empty in a manifest of
                         // version 1
    std::string initial_weights;  // InitialWeights::identity() of what was begun with; empty: seeded values
    std::optional<LossScaling> loss_scaling;  // of plans in fp16
    std::vector<double> losses;               // of all steps so far
    std::vector<CheckpointFile> files;        // by rank
    std::vector<std::string> places;          // by rank, where hosts share no folder: "node7:/scratch/states"
};

// The document that is written; equal manifests are equal texts. Its last member is the XXH64 of the others.
std::string text_of(const CheckpointManifest& manifest);
// Nothing, and words with `path` in `failure`, when the text is damaged or of a later version.
std::optional<CheckpointManifest> read_manifest_text(const std::string& text, const std::string& path,
                                                     std::string& failure);

// FOLDER/manifest.json. Writing is durable and throws core::MachineError.
std::optional<CheckpointManifest> read_manifest(const std::string& folder, std::string& failure);
void write_manifest(const std::string& folder, const std::string& text);

}  // namespace exec
