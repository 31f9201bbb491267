// A tool as a table of its commands.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

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

}  // namespace apps
