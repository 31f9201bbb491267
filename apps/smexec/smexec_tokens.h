// smexec convert --to tokens: texts as a file of tokens that training data may be.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

bool asks_for_tokens(const std::vector<std::string>& arguments);
int run_smexec_tokens(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
