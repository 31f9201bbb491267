// One row of published measurements (tests/validation/README.md describes the columns) as what the simulator
// takes: a model, a cluster and a plan. The mapping knows vocabularies, never rows: any file with these
// columns works.
#pragma once

#include <optional>
#include <string>

#include "core/csv.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace validation {

struct PublishedRun {
    std::string id, group;
    core::Value model;      // a [model] table
    core::Value cluster;    // a [cluster] table
    std::string transport;  // of the network as the source used it: EFA cards also carry TCP
    bool peak_is_of_process =
        false;  // read from nvidia-smi: context and communicators included; else the allocator's own count
    // nvidia-smi shows one node. Where the source does not say which, it is the first: the node that a
    // launcher runs on.
    bool peak_is_of_first_node = false;
    int ranks_per_node = 0;
    schedule::Plan plan;
    std::int64_t global_batch = 0;
    core::Seconds measured;
    std::optional<core::Bytes> measured_peak;
    std::vector<std::string> assumptions;  // what the row leaves open
};

// The columns a file of measurements and a file of clusters must have.
const std::vector<std::string>& run_columns();
const std::vector<std::string>& cluster_columns();

// A cell that is no number, a word outside its vocabulary, degrees that do not multiply to the GPUs:
// diagnostics at the row's line; nothing is returned. A model or precision that exists in the vocabulary but
// that the simulator does not know: `unsupported` says which.
std::optional<PublishedRun> read_run(const core::CsvTable& runs, const core::CsvRow& row,
                                     const core::CsvTable& clusters, core::Diagnostics& diagnostics,
                                     std::string& unsupported);

// The figure that the source printed, as predicted: what the allocator has reserved or what the process
// holds, on the ranks it was read from.
core::Bytes published_peak(const PublishedRun& run, const schedule::Plan& plan,
                           const sim::Evaluation& evaluation);

}  // namespace validation
