// Options of one command: known names only, typed values, every mistake a diagnostic with a did-you-mean.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace api {

struct OptionNames {
    std::vector<std::string> with_value;  // "--devices": the next argument, or after '='
    std::vector<std::string> flags;       // "--json"
};

class Options {
public:
    // Arguments that are no options are collected in positional().
    Options(const std::vector<std::string>& arguments, const OptionNames& names,
            core::Diagnostics& diagnostics);

    bool has(const std::string& name) const;
    const std::vector<std::string>& positional() const { return positional_; }
    // The only positional argument of the command. Empty when none is given, which is an error if it is
    // needed. `name` is the one in the usage line ("PLAN.toml"), `what` a noun ("plan").
    std::string only_positional(const std::string& name, const std::string& what, const std::string& hint,
                                bool is_needed = true);
    std::optional<std::string> text(const std::string& name) const;  // the last one given
    std::vector<std::string> all(const std::string& name) const;
    std::optional<std::int64_t> integer(const std::string& name, std::int64_t least, std::int64_t greatest);
    std::optional<double> real(const std::string& name, double least, double greatest);
    std::vector<std::string> list(
        const std::string& name) const;  // comma separated, all occurrences, without empty parts
    std::optional<std::string> choice(const std::string& name, const std::vector<std::string>& allowed);

    void error(const std::string& name, const std::string& message, const std::string& hint = {});

private:
    std::map<std::string, std::vector<std::string>> values_;
    std::vector<std::string> positional_;
    bool has_unknown_ = false;  // whose value may be among the positional ones
    core::Diagnostics& diagnostics_;
};

}  // namespace api
