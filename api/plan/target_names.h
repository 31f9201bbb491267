// What --target names: a profile, or several by their family or a pattern.
#pragma once

#include <string>
#include <vector>

namespace api {

struct NamedTarget {
    std::string name;         // of a profile, or a path
    bool is_of_many = false;  // of a family or pattern: left out where it does not apply
};

// "p4d.24xlarge": itself, like everything that is not known; "p4d": every size of the family; "p*" and
// "g?dn.*": every profile that matches; "all": every one.
std::vector<NamedTarget> named_targets(const std::vector<std::string>& given);

}  // namespace api
