// Plans in other tools' words, and back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/options.h"
#include "api/reply.h"
#include "schedule/plan/plan_file.h"

namespace api {

OptionNames export_options();
// The arguments of `smplan export`: target, text, companions[], notes[], warnings[].
Reply export_plan(const std::vector<std::string>& arguments);

// Options of `smplan import` that say what the file does not hold.
const std::vector<std::string>& import_option_names();
OptionNames import_options();
// The file that the options name, as a plan. Nothing where there are errors.
std::optional<schedule::PlanFile> read_other_tool(Options& options, core::Diagnostics& diagnostics);
// The arguments of `smplan import`: target, text, plan, warnings[].
Reply import_plan(const std::vector<std::string>& arguments);

}  // namespace api
