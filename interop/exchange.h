// A plan in the words of another tool, and back: one target a file, all of them listed in exchange.cpp.
//
// What a target cannot express is an error that names the plan's key, the target and what to change. What the
// target leaves to a training script is one warning that lists it; what it needs and the plan does not say is
// a placeholder that begins with REPLACE, and a warning.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_graph.h"
#include "schedule/plan/plan_file.h"

namespace interop {

struct ExportSource {
    schedule::PlanFile file;
    core::Value plan_table;  // [plan] as it was read: where diagnostics point
    model::ModelGraph graph;
    cluster::Cluster cluster;
};
// Reads the plan, its model and its cluster, and checks that they fit together.
std::optional<ExportSource> load_export_source(const std::string& path, core::Diagnostics& diagnostics);

struct ExportOptions {
    std::string command;             // launchers: what every rank runs; empty = smexec with the plan itself
    std::string script;              // the training script; empty = a placeholder
    bool is_for_tensorflow = false;  // SMP v1: Horovod instead of DistributedDataParallel
    // Launchers of smexec: the folder of its checkpoints, from which a job that is started again goes on, and
    // after how many steps one is written (nothing: at the end and at signals). Empty: none.
    std::string checkpoint = {};
    std::optional<std::int64_t> checkpoint_every = {};
};

struct ExportedFile {
    std::string name, text;
};
struct Export {
    std::string text;
    std::vector<ExportedFile> companions;  // files that go with it
    std::vector<std::string> notes;        // the placement it means, how to start it
};

// What the other tool's file does not hold.
struct ImportOptions {
    std::string model = {};     // as [model] name
    std::string instance = {};  // as [cluster] instance
    std::optional<std::int64_t> sequence_length = {}, nodes = {}, processes_per_node = {}, micro_batch = {};
};

struct ExchangeTarget {
    std::string name, summary;
    // Nothing when there are errors.
    std::optional<Export> (*write)(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics) = nullptr;
    // Null where the target's files do not hold a plan (launchers).
    std::optional<schedule::PlanFile> (*read)(const std::string& text, const std::string& path,
                                              const ImportOptions& options,
                                              core::Diagnostics& diagnostics) = nullptr;
    // Of framework_profiles/, with which plans for it are priced; empty: launchers.
    std::string framework = {};
};
const std::vector<ExchangeTarget>& exchange_targets();
const ExchangeTarget* find_exchange_target(const std::string& name);

// Why a target does not run a plan as it is priced.
struct Refusal {
    std::string key;  // "plan.sharding"
    std::string reason, change;
    bool operator==(const Refusal&) const = default;
};
// The errors of its export, and the warnings about what of a step it does not overlap. None: it runs it.
std::vector<Refusal> refusals(const ExchangeTarget& target, const ExportSource& source);

}  // namespace interop
