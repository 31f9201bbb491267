#include "validation/linearised_runs.h"

#include <fmt/core.h>

#include <cmath>
#include <exception>
#include <map>
#include <mutex>

#include "core/diagnostics.h"
#include "core/parallel.h"
#include "sim/report/breakdown.h"
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

std::string to_csv(const LinearisedRuns& runs) {
    std::string text =
        "id,group,device,precision,framework,family,transport,nodes,devices,tensor,pipeline,fsdp,err,peakerr";
    for (const sim::BreakdownPart& part : sim::breakdown_parts()) text += fmt::format(",b_{}", part.name);
    for (const char* figure : {"s", "m"})
        for (const sim::NamedConstant& constant : sim::named_constants())
            text += fmt::format(",{}_{}", figure, constant.name);
    text += '\n';
    for (const LinearisedRun& run : runs.runs) {
        const sim::RunFacts& facts = run.facts;
        for (const std::string& cell : {run.id, run.group, facts.device, facts.precision, facts.framework,
                                        facts.family, facts.transport})
            text += core::csv_cell(cell) + ',';
        text += fmt::format("{},{},{},{},{},{},{}", facts.nodes, facts.devices, facts.tensor, facts.pipeline,
                            int(facts.shards_parameters), run.log_error,
                            run.log_peak_error ? fmt::format("{}", *run.log_peak_error) : "");
        const core::Seconds step = sim::sum(run.breakdown);
        for (const sim::BreakdownPart& part : sim::breakdown_parts())
            text += fmt::format(",{}", run.breakdown.*part.part / step);
        for (const std::vector<double>* figure : {&run.responses.step, &run.responses.peak})
            for (double response : *figure) text += fmt::format(",{}", response);
        text += '\n';
    }
    return text;
}

LinearisedRuns read_linearised(const core::CsvTable& table, const core::CsvTable& runs,
                               core::Diagnostics& diagnostics) {
    std::map<std::string_view, std::size_t> row_of;
    for (std::size_t i = 0; i < runs.rows.size(); ++i) row_of[runs.cell(runs.rows[i], "id")] = i;
    for (const char* figure : {"s", "m"})
        for (const sim::NamedConstant& constant : sim::named_constants())
            if (const std::string column = fmt::format("{}_{}", figure, constant.name); !table.column(column))
                diagnostics.error({table.file, 1, 1}, column, "no column " + column,
                                  "of another version: make the file again");
    LinearisedRuns result;
    if (diagnostics.has_errors()) return result;
    for (const core::CsvRow& row : table.rows) {
        const auto text = [&](const std::string& column) { return std::string(table.cell(row, column)); };
        const auto number = [&](const std::string& column) {
            return core::parse_real(table.cell(row, column)).value_or(0);
        };
        const auto whole = [&](const char* column) { return int(number(column)); };
        LinearisedRun run;
        run.id = text("id");
        run.group = text("group");
        const auto found = row_of.find(run.id);
        if (found == row_of.end()) {
            diagnostics.error(table.location(row, "id"), "id", run.id + " is not in " + runs.file,
                              "make the file again");
            continue;
        }
        run.row = found->second;
        run.facts = {text("device"),    text("precision"),  text("framework"), text("family"),
                     text("transport"), whole("nodes"),     whole("devices"),  whole("tensor"),
                     whole("pipeline"), number("fsdp") != 0};
        run.log_error = number("err");
        if (!text("peakerr").empty()) run.log_peak_error = number("peakerr");
        run.noise = 0.01 * core::parse_real(runs.cell(runs.rows[run.row], "noise_pct")).value_or(0);
        for (const sim::BreakdownPart& part : sim::breakdown_parts())
            run.breakdown.*part.part = core::seconds(number(fmt::format("b_{}", part.name)));
        for (const sim::NamedConstant& constant : sim::named_constants()) {
            run.responses.step.push_back(number(fmt::format("s_{}", constant.name)));
            run.responses.peak.push_back(number(fmt::format("m_{}", constant.name)));
        }
        result.runs.push_back(std::move(run));
    }
    return result;
}

}  // namespace validation
