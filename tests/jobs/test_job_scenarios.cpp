// The scenarios that are shipped: each is read without a complaint, its whole training too.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "jobs/job.h"
#include "sim/scenario.h"

TEST_CASE("every scenario that is shipped can be read, and so can its job") {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(SOURCE_DIR) + "/scenarios"))
        if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    int jobs_read = 0;
    for (const std::string& file : files) {
        core::Diagnostics diagnostics;
        const auto document = sim::load_scenario_document(file, diagnostics);
        if (document) {
            sim::read_scenario(*document, file, diagnostics);
            if (const core::Value* table = document->find("job"))
                jobs_read += jobs::read_job(*table, diagnostics).has_value();
        }
        INFO(core::format(diagnostics));
        CHECK_FALSE(diagnostics.has_errors());
    }
    CHECK(jobs_read >= 4);
}
