// What a --lint command says when nothing is wrong.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

// One JSON document with the files that were read and no errors, or `words` on a line.
void show_clean(const std::vector<std::string>& files, const std::string& words, bool as_json,
                std::ostream& out);

}  // namespace apps
