// Shared by all commands of the three tools: exit codes, how wrong input is shown, how failures become
// exit codes.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace apps {

enum ExitCode : int { good = 0, internal_failure = 1, wrong_input = 2, no_plan = 3, machine_failure = 4 };

struct Subcommand {
    std::string name;
    std::string summary;
    std::function<int(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err)> run;
};

struct Tool {
    std::string name;
    std::string help;                     // complete text of --help, with an example
    std::vector<Subcommand> subcommands;  // first argument that is one of these names
    Subcommand fallback;                  // everything else
};

// main() of a tool: --help, --version, dispatch; exceptions become exit codes with one line on stderr (one
// JSON document on stdout with --json).
int run_tool(const Tool& tool, int argc, char** argv);

// Shows the diagnostics (text on `err`; with `as_json` errors as the contract's document on `out`) and
// returns wrong_input when there are errors, else good.
int show(const core::Diagnostics& diagnostics, bool as_json, std::ostream& out, std::ostream& err);

// Before the work whose result goes there: can a file be written at `path`? A diagnostic about the option
// whose value it is.
void check_output(const std::string& option, const std::string& path, core::Diagnostics& diagnostics);

struct OutputFile {
    std::string path, content;
};
// After the answer is shown, so that it is not lost with a file. What fails goes to `err`, as stdout has its
// document already: good or machine_failure.
int write_outputs(const std::vector<OutputFile>& files, std::ostream& err);

bool wants_json(const std::vector<std::string>& arguments);

extern const char* const version;

}  // namespace apps
