#include "api/plan/target_names.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "cluster/profile/load.h"

namespace api {

namespace {

// `*` stands for any text, `?` for one character.
bool matches(std::string_view name, std::string_view pattern) {
    if (pattern.empty()) return name.empty();
    if (pattern.front() == '*') {
        const std::size_t stars = std::min(pattern.find_first_not_of('*'), pattern.size());
        for (std::size_t skipped = 0; skipped <= name.size(); ++skipped)
            if (matches(name.substr(skipped), pattern.substr(stars))) return true;
        return false;
    }
    return !name.empty() && (pattern.front() == '?' || pattern.front() == name.front()) &&
           matches(name.substr(1), pattern.substr(1));
}

}  // namespace

std::vector<NamedTarget> named_targets(const std::vector<std::string>& given) {
    constexpr std::size_t longest_pattern = 64;  // profiles have shorter names
    const std::vector<std::string> known = cluster::instance_names();
    std::vector<NamedTarget> targets;
    const auto add = [&](const std::string& name, bool is_of_many) {
        const auto is_same = [&](const NamedTarget& other) { return other.name == name; };
        const auto found = std::find_if(targets.begin(), targets.end(), is_same);
        if (found == targets.end()) targets.push_back({name, is_of_many});
        else found->is_of_many = found->is_of_many && is_of_many;
    };
    for (const std::string& text : given) {
        const bool is_path = text.find('/') != std::string::npos || text.ends_with(".toml");
        const bool is_known = std::find(known.begin(), known.end(), text) != known.end();
        std::vector<std::string> many;
        if (!is_path && !is_known && text.size() <= longest_pattern)
            std::copy_if(known.begin(), known.end(), std::back_inserter(many), [&](const std::string& name) {
                return text == "all" || name.starts_with(text + ".") || matches(name, text);
            });
        for (const std::string& name : many) add(name, true);
        if (many.empty()) add(text, false);
    }
    return targets;
}

}  // namespace api
