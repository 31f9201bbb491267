#include "validation/linearised_runs.h"

#include <cmath>
#include <exception>
#include <mutex>

#include "core/diagnostics.h"
#include "core/parallel.h"
#include "validation/prepared_run.h"
#include "validation/published_run.h"

namespace validation {

namespace {

std::string first_error(const core::Diagnostics& diagnostics) {
    for (const core::Diagnostic& entry : diagnostics.entries())
        if (entry.severity == core::Severity::error) return entry.message;
    return "no reason was given";
}

std::optional<LinearisedRun> linearise_row(const core::CsvTable& table, const core::CsvRow& row,
                                           const core::CsvTable& clusters,
                                           const sim::CostConstants& constants, std::string& reason) {
    core::Diagnostics diagnostics;
    const std::optional<PublishedRun> run = read_run(table, row, clusters, diagnostics, reason);
    if (!run) {
        if (reason.empty()) reason = first_error(diagnostics);
        return std::nullopt;
    }
    const std::optional<PreparedRun> prepared = prepare(*run, diagnostics, constants);
    sim::EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = 4 * run->plan.layout.pipeline * run->plan.virtual_stages;
    const std::optional<sim::Evaluation> evaluation =
        prepared ? evaluate(prepared->graph, prepared->cluster, prepared->plan, diagnostics, options)
                 : std::nullopt;
    const auto peak = [&](const sim::Evaluation& of) { return published_peak(*run, prepared->plan, of); };
    std::optional<sim::ConstantResponses> responses =
        evaluation ? sim::constant_responses(prepared->graph, prepared->cluster, prepared->plan,
                                             {.constants = constants, .peak = peak})
                   : std::nullopt;
    if (!responses) {
        reason = first_error(diagnostics);
        return std::nullopt;
    }
    LinearisedRun result;
    result.id = run->id;
    result.group = run->group;
    result.facts = sim::facts_of(prepared->graph, prepared->cluster, prepared->plan);
    result.breakdown = evaluation->breakdown;
    if (table.column("noise_pct"))
        result.noise = 0.01 * core::parse_real(table.cell(row, "noise_pct")).value_or(0);
    result.log_error = std::log(run->measured / evaluation->step_time);
    if (run->measured_peak && peak(*evaluation).value > 0)
        result.log_peak_error = std::log(*run->measured_peak / peak(*evaluation));
    result.responses = std::move(*responses);
    return result;
}

}  // namespace

LinearisedRuns linearise(const core::CsvTable& runs, const core::CsvTable& clusters,
                         const LineariseOptions& options) {
    std::vector<std::optional<LinearisedRun>> results(runs.rows.size());
    std::vector<std::string> reasons(runs.rows.size());
    std::size_t done = 0;
    std::mutex reporting;
    core::for_each_in_parallel(runs.rows.size(), options.threads, [&](std::size_t i, int) {
        try {
            results[i] = linearise_row(runs, runs.rows[i], clusters, options.constants, reasons[i]);
        } catch (const std::exception& failure) {
            reasons[i] = failure.what();
        }
        const std::lock_guard lock(reporting);
        ++done;
        if (options.progress) options.progress(done, runs.rows.size());
    });
    LinearisedRuns linearised;
    for (std::size_t i = 0; i < runs.rows.size(); ++i) {
        if (!results[i]) {
            linearised.refused.push_back({i, std::string(runs.cell(runs.rows[i], "id")), reasons[i]});
            continue;
        }
        results[i]->row = i;
        linearised.runs.push_back(std::move(*results[i]));
    }
    return linearised;
}

}  // namespace validation
