// Man pages and completions of shells, made from what the commands themselves say: the options that each
// knows (its OptionNames) and its --help. Nothing is written down twice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/tool.h"

namespace apps {

// "man", "bash", "zsh" or "fish".
const std::vector<std::string>& manual_forms();
// Nothing for another form.
std::optional<std::string> manual_of(const Tool& tool, const std::string& form);

}  // namespace apps
