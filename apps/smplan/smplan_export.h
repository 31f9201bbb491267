// `smplan export` and `smplan import`: plans in the words of other tools, and back.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "core/diagnostics_fwd.h"
#include "schedule/plan/plan_file.h"

namespace apps {

int run_export_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_import_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

// Options of reading another tool's file, each with a value: --from, and what the file does not hold.
const std::vector<std::string>& import_option_names();
// The file named by the only positional argument, in the words of --from. Nothing where there are errors.
std::optional<schedule::PlanFile> read_other_tool(Options& options, core::Diagnostics& diagnostics);

}  // namespace apps
