// Values as YAML and as Python source.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/value.h"

namespace interop {

// A table as a YAML 1.1 document (PyYAML's); members `depth` steps of two blanks from the left. Texts of
// several lines are written as they are, after "|".
std::string yaml(const core::Value& table, int depth = 0);

// True, None, numbers, quoted texts, lists and dictionaries.
std::string python_literal(const core::Value& value);
// `name(key=value, ...)`, an argument a line.
class PythonCall {
public:
    explicit PythonCall(std::string name) : name_(std::move(name)) {}
    PythonCall& with(const std::string& key, const core::Value& value);
    PythonCall& with_members(const core::Value& table);  // an argument a member
    PythonCall& with_source(const std::string& key, const std::string& source);
    // Begins where it stands; closed `depth` steps of four blanks from the left.
    std::string text(int depth = 0) const;

private:
    std::string name_;
    std::vector<std::pair<std::string, std::string>> arguments_;  // source
};

}  // namespace interop
