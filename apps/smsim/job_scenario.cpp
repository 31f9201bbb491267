#include "apps/smsim/job_scenario.h"

#include "api/searched_order.h"
#include "core/diagnostics.h"

namespace apps {

std::optional<JobScenario> read_job_scenario(const std::string& path, const std::vector<std::string>& set,
                                             core::Diagnostics& diagnostics) {
    std::optional<core::Value> document = sim::load_scenario_document(path, diagnostics);
    if (!document) return std::nullopt;
    for (const std::string& text : set)
        if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    std::optional<sim::Scenario> scenario = sim::read_scenario(*document, path, diagnostics);
    std::optional<jobs::Job> job;
    if (const core::Value* table = document->find("job")) job = jobs::read_job(*table, diagnostics);
    if (!scenario || diagnostics.has_errors()) return std::nullopt;
    std::string explanation;
    if (!api::search_order(*scenario, diagnostics, explanation)) return std::nullopt;
    return JobScenario{std::move(*document), std::move(*scenario), std::move(job)};
}

}  // namespace apps
