#include "apps/lint.h"

#include <ostream>

#include "core/document.h"

namespace apps {

void show_clean(const std::vector<std::string>& files, const std::string& words, bool as_json,
                std::ostream& out) {
    if (!as_json) {
        out << words << '\n';
        return;
    }
    core::Value document;
    document["files"] = core::Value(files);
    document["errors"] = core::Value::array();
    out << core::to_json(document) << '\n';
}

}  // namespace apps
