// Output of nccl-tests as measurements of a cluster's network: what it says, and the efficiency and latency
// of the network at which predictions meet it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "schedule/program/program.h"

namespace validation {

// One run of all_reduce_perf, all_gather_perf or reduce_scatter_perf.
struct NcclTests {
    schedule::CollectiveKind collective = schedule::CollectiveKind::all_reduce;
    int ranks = 0, nodes = 0;
    std::string version;  // as the first line states it; empty before nccl-tests 2.17
    std::string device;   // of the first rank, "NVIDIA H100 80GB HBM3"
    struct Row {
        core::Bytes
            bytes;  // the whole vector: all_reduce and reduce_scatter its input, all_gather its result
        core::Seconds time;  // the mean of out of place and in place, where both were measured
    };
    std::vector<Row> rows;  // without those of zero bytes
};

// Columns are those of nccl-tests since 2.10 (src/common.cu of v2.11: size, count, type, redop, root, then
// time, algbw, busbw and wrong twice); 2.10 to 2.16 do not name the collective: `collective` ("all_reduce")
// does then. Diagnosed with lines: another format, two collectives, values that were wrong, ranks that do not
// fill nodes evenly.
std::optional<NcclTests> read_nccl_tests(std::string_view text, const std::string& file,
                                         const std::optional<std::string>& collective,
                                         core::Diagnostics& diagnostics);

struct NetworkFit {
    double efficiency_before = 0, efficiency = 0;  // achieved share of the cards' bandwidth
    core::Seconds latency_before, latency;
    struct Row {
        core::Bytes bytes;
        core::Seconds measured, before, after;
    };
    std::vector<Row> rows;
    double error_before_pct = 0, error_pct = 0;  // mean of |predicted / measured - 1|
};

// `cluster` as in scenarios ({ instance = "p4d.24xlarge" }); nodes are those of the tests. The efficiency and
// latency with the least squared logarithms of predicted over measured. Diagnosed: an unknown cluster, ranks
// that it does not have, tests within one node (which say nothing of a network), fewer than two sizes.
std::optional<NetworkFit> fit_network(const NcclTests& tests, core::Value cluster,
                                      core::Diagnostics& diagnostics);

// The [cluster] table that scenarios and plans take, with where its figures are from in a comment.
std::string cluster_table(const NetworkFit& fit, const NcclTests& tests, core::Value cluster,
                          const std::string& file, const std::string& date);
core::Value to_value(const NetworkFit& fit, const NcclTests& tests);

}  // namespace validation
