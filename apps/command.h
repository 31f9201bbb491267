// Shared by all commands of the three tools: exit codes, how wrong input is shown, how failures become
// exit codes.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "api/output.h"
#include "api/reply.h"
#include "api/version.h"
#include "apps/tool.h"
#include "core/diagnostics_fwd.h"

namespace apps {

using api::check_output;
using api::OutputFile;

enum ExitCode : int { good = 0, internal_failure = 1, wrong_input = 2, no_plan = 3, machine_failure = 4 };

// main() of a tool: --help, --version, dispatch; exceptions become exit codes with one line on stderr (one
// JSON document on stdout with --json).
int run_tool(const Tool& tool, int argc, char** argv);

// Shows the diagnostics (text on `err`; with `as_json` errors as the contract's document on `out`) and
// returns wrong_input when there are errors, else good.
int show(const core::Diagnostics& diagnostics, bool as_json, std::ostream& out, std::ostream& err);

// After the answer is shown, so that it is not lost with a file. "wrote step.html" goes to `err` unless
// `as_json`, and so does what fails, as stdout has its document already: good or machine_failure.
int write_outputs(const std::vector<OutputFile>& files, bool as_json, std::ostream& err);

// An answer of the facade: its warnings, its document or its text, its files; the exit code.
int show_reply(const api::Reply& reply, bool as_json, std::ostream& out, std::ostream& err);

// A command that was stopped before it had anything to answer with, "before a plan was found": no_plan.
int show_stopped(const std::string& before, const std::string& hint, bool as_json, std::ostream& out,
                 std::ostream& err);

bool wants_json(const std::vector<std::string>& arguments);

using api::version;

}  // namespace apps
