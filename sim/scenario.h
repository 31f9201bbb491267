// A scenario: a plan file (schedule/plan/plan_file.h) with the question it answers, or a reference to one,
// and what-if overrides.
//
//   question = "What if the network were twice as fast?"
//   plan = "plans/gpt3.toml"          # instead of [model], [cluster], [plan], [training]; any of these given
//   here replaces the file's [what_if.cluster]                 # merged over everything above, key by key
//   network_bandwidth = "800Gbps"
//
// `--set` and `--sweep` change the same tree before it is read, so a wrong value is diagnosed like one in the
// file, located on the command line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_graph.h"
#include "schedule/plan/plan_file.h"

namespace sim {

struct Scenario {
    std::string path;
    std::string question;  // empty when the file asks none
    schedule::PlanFile file;
    model::ModelGraph graph;
    cluster::Cluster cluster;
};

// The scenario's tree with its plan reference resolved and its what-if overrides applied.
std::optional<core::Value> load_scenario_document(const std::string& path, core::Diagnostics& diagnostics);
// The same of a tree that is no file, or read already; `path` is what its references are relative to.
std::optional<core::Value> resolve_scenario_document(const core::Value& document, const std::string& path,
                                                     core::Diagnostics& diagnostics);

// "plan.micro_batch=4": a dotted key and a value in TOML syntax; text that is no TOML value is a string
// (cluster.instance=p4d.24xlarge).
struct Assignment {
    std::string key;
    core::Value value;
    std::string text;  // of the value, as given
};
// `option` ("--set") is the location that diagnostics name, `example` what they hint at.
std::optional<Assignment> parse_assignment(std::string_view text, const std::string& option,
                                           core::Diagnostics& diagnostics,
                                           const std::string& example = "plan.micro_batch=2");
// "plan.micro_batch=1,2,4": commas inside brackets or quotes do not separate.
std::vector<Assignment> parse_sweep(std::string_view text, const std::string& option,
                                    core::Diagnostics& diagnostics);
// Sets the key, making tables on the way; a path through something that is no table, or an unknown section,
// is a diagnostic.
void assign(core::Value& document, const Assignment& assignment, core::Diagnostics& diagnostics);

// Reads model, cluster and plan and checks them against each other. Relative references are relative to the
// file that contains them. `emulates_half`: the caller runs the plan itself, and rounds to bf16 and fp8 on
// processors that compute in fp32.
std::optional<Scenario> read_scenario(const core::Value& document, const std::string& path,
                                      core::Diagnostics& diagnostics, bool emulates_half = false);

}  // namespace sim
