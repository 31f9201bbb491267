// What every launcher asks of a plan: nodes, processes on each, the command of a rank, and the network's
// variables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interop/expression.h"

namespace interop {

struct Launch {
    int nodes = 1, processes = 1;  // per node
    std::string command;
    bool is_smexec = true;
    bool is_local = false;
    bool resumes = false;  // started again it goes on from its checkpoint
};
// Refuses ranks that do not fill the nodes evenly. `ranks_from`: how smexec learns its rank.
std::optional<Launch> prepare_launch(Expression& e, const ExportOptions& options, const char* ranks_from);
std::vector<std::string> launch_notes(const Expression& e, const Launch& launch);

// As one word of a POSIX shell.
std::string shell_quoted(const std::string& text);

// NAME=VALUE of an instance with EFA; nothing of others.
std::vector<std::string> efa_variables(const ExportSource& source);
// The same as lines of a shell script.
std::string efa_exports(const ExportSource& source);

}  // namespace interop
