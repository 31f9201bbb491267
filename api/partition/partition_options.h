// The command line of `smplan partition`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/options.h"
#include "core/units.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/model_placement.h"

namespace api {

enum class PartitionAlgorithm { exact, smp_tree, chain, multilevel };

struct PartitionRequest {
    std::string path, format;  // format empty: by content
    std::vector<int> device_counts;
    std::optional<int> cpus, micro_batches, devices_per_instance;
    std::optional<core::Bytes> memory;
    std::vector<core::BytesPerSecond> bandwidths;
    std::optional<core::Seconds> time_limit;
    bool is_contiguous = true;
    PartitionAlgorithm algorithm = PartitionAlgorithm::exact;
    std::optional<double> memory_weight;
    // Models.
    partition::Granularity granularity = partition::Granularity::unit;
    std::optional<partition::TiedParameters> tied;
    std::string target = "p3.16xlarge";
    int micro_batch = 1;
    std::optional<std::int64_t> sequence_length;
    bool allow_unknown = false;
    // Decisions and pictures.
    std::optional<std::string> out, load, dot, svg;
    std::optional<int> default_partition;
};

PartitionRequest read_partition_request(const std::vector<std::string>& arguments,
                                        core::Diagnostics& diagnostics);
// Levels of a pipedream hierarchy: one bandwidth for all, or one a level; a single count for several
// bandwidths is divided evenly (16 over two levels: 4 x 4).
std::vector<partition::BandwidthLevel> bandwidth_levels(const PartitionRequest& request,
                                                        core::Diagnostics& diagnostics);
// Options that the format gives no meaning are errors.
void refuse_foreign_options(const std::vector<std::string>& arguments, const std::string& format,
                            core::Diagnostics& diagnostics);

}  // namespace api
