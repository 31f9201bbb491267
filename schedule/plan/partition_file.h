// A partition saved to a file: the units of each stage, and the graph that it is for. SageMaker's
// `partition_file`; read by smplan, smsim and smexec.
//
//   version = 1
//   [partition]
//   graph = "resnet50.onnx"            # for people
//   graph_hash = "0123456789abcdef"    # model::hash_of or partition::hash_of; optional
//   first_units = [0, 5, 9]            # if stages are runs of whole units, as smsim and smexec need
//   [[partition.stage]]
//   device = "accelerator"
//   nodes = ["conv1", "layer1"]        # names; a module's name stands for all below it
//   replicas = [4, 2]                  # of replicated stages (piper, pipedream), innermost level first
//   tensor_parallel = 8                # piper: devices of a replica
//   configurations = ["vanilla", "activation recomp"]    # piper: how each node runs on them
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace schedule {

struct PartitionFile {
    std::string graph = {}, graph_hash = {}, algorithm = {}, granularity = {}, unit = {};
    std::optional<double> objective = {}, lower_bound = {};  // in `unit`
    bool is_proven_optimal = false;
    std::vector<std::int32_t> first_units = {};
    struct Stage {
        std::string device;
        std::vector<std::string> nodes;
        std::vector<std::int32_t> replicas = {};
        std::int32_t tensor_parallel = 1;
        std::vector<std::string> configurations = {};  // of each node
        bool operator==(const Stage&) const = default;
    };
    std::vector<Stage> stages = {};
    bool operator==(const PartitionFile&) const = default;
};

inline constexpr int partition_file_version = 1;

std::optional<PartitionFile> load_partition_file(const std::string& path, core::Diagnostics& diagnostics,
                                                 const core::SourceLocation& referrer = {},
                                                 const std::string& key = "partition");
// Lossless.
std::string write_partition_file(const PartitionFile& file);

struct Plan;
// Fills a plan's partition from the file it names, relative to the file in which the name stands.
void read_saved_partition(const std::string& name, const core::SourceLocation& location,
                          const std::string& key, Plan& plan, core::Diagnostics& diagnostics);

}  // namespace schedule
