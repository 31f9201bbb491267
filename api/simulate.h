// One training step of a scenario predicted, or a sweep over it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/reply.h"
#include "core/value.h"

namespace api {

// A scenario, as a file or as the tree that a file of it would be.
struct ScenarioSource {
    std::string path;                      // of the file; what relative references are relative to
    std::optional<core::Value> tree = {};  // none: the file at `path`
    std::vector<std::string> set = {};     // "plan.micro_batch=2", over what the scenario says
    std::vector<std::pair<std::string, core::Value>> values = {};  // the same, by dotted key and value
    std::string name = {};                                         // that answers give it; empty: its path
};
const std::string& name_of(const ScenarioSource& source);
// With its plan's file and its what-if overrides merged, and what is set over them. Nothing where there are
// errors.
std::optional<core::Value> load_scenario(const ScenarioSource& source, core::Diagnostics& diagnostics);

struct SimulateRequest {
    ScenarioSource scenario;
    std::vector<std::string> sweep = {};                         // "plan.micro_batch=1,2,4"
    std::optional<std::string> trace = {}, html = {}, csv = {};  // files to write, in the reply
    std::optional<std::string> timeline = {};     // file to write: sim::timeline_columns, for a page
    std::optional<std::string> calibration = {};  // file to read
    bool explains = false, is_unfolded = false;
    std::size_t width = core::usual_width;  // of tables, in columns
};
// The document has the contract's keys; no_plan where the plan does not fit (the prediction is there all the
// same). Of a sweep: rows[], no_plan where none fits. `told`: where there are errors already the scenario is
// only checked.
Reply simulate(const SimulateRequest& request, core::Diagnostics told = {});

}  // namespace api
