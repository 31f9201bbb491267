// The catalogue against published integers.
#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>

#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "model/reader/catalogue.h"

namespace {

model::ModelGraph loaded(const std::string& name, const model::LoadOptions& options = {}) {
    core::Diagnostics diagnostics;
    const auto graph = model::load_model(name, options, diagnostics);
    INFO(name << "\n" << core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

}  // namespace

TEST_CASE("every catalogue entry builds a sound graph and counts its published parameters exactly") {
    const std::vector<std::string> names = model::catalogue_names();
    REQUIRE(names.size() > 70);
    for (const std::string& name : names) {
        core::Diagnostics diagnostics;
        const auto entry = model::catalogue_entry(name, diagnostics);
        REQUIRE(entry);
        REQUIRE(entry->find("source"));
        const model::ModelGraph graph = loaded(name);
        if (const core::Value* published = entry->find("published_parameters")) {
            INFO(name);
            CHECK(model::parameter_count(graph) == published->integer());
        }
    }
}

TEST_CASE("every name of the shared list is in the catalogue with its published count") {
    std::ifstream file(SHARED_DIR "/reference/models.csv");
    if (!file) {
        WARN("skipped: no shared reference/models.csv");
        return;
    }
    std::string line;
    std::getline(file, line);
    int published = 0, rows = 0;
    while (std::getline(file, line)) {
        const std::string name = line.substr(0, line.find(','));
        INFO(name);
        const model::ModelGraph graph = loaded(name);
        ++rows;
        const std::string count = line.substr(line.rfind(',') + 1);
        if (count.find_first_of("0123456789") == std::string::npos) continue;
        CHECK(model::parameter_count(graph) == std::stoll(count));
        ++published;
    }
    CHECK(rows >= 71);
    CHECK(published >= 14);
}
