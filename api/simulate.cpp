#include "api/simulate.h"

#include <optional>
#include <utility>

#include "api/report_page/report_page.h"
#include "api/searched_order.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "sim/report/report.h"
#include "sim/report/timeline_columns.h"
#include "sim/report/trace.h"
#include "sim/scenario.h"
#include "sim/uncertainty/interval.h"

namespace api {

const std::string& name_of(const ScenarioSource& source) {
    return source.name.empty() ? source.path : source.name;
}

std::optional<core::Value> load_scenario(const ScenarioSource& source, core::Diagnostics& diagnostics) {
    std::optional<core::Value> document =
        source.tree ? sim::resolve_scenario_document(*source.tree, source.path, diagnostics)
                    : sim::load_scenario_document(source.path, diagnostics);
    for (const std::string& text : source.set)
        if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics); assignment && document)
            sim::assign(*document, *assignment, diagnostics);
    for (const auto& [key, value] : source.values)
        if (document) sim::assign(*document, {key, value, {}}, diagnostics);
    return document;
}

namespace {

// Every combination of the swept values, the last key varying fastest.
std::vector<std::vector<sim::Assignment>> combinations(
    const std::vector<std::vector<sim::Assignment>>& axes) {
    std::vector<std::vector<sim::Assignment>> points(1);
    for (const std::vector<sim::Assignment>& axis : axes) {
        std::vector<std::vector<sim::Assignment>> longer;
        for (const std::vector<sim::Assignment>& point : points)
            for (const sim::Assignment& value : axis) {
                longer.push_back(point);
                longer.back().push_back(value);
            }
        points = std::move(longer);
    }
    return points;
}

sim::SweepRow predict_point(const core::Value& document, const std::string& path,
                            const std::vector<sim::Assignment>& point, const sim::Posterior& posterior) {
    sim::SweepRow row;
    core::Value changed = document;
    for (const sim::Assignment& value : point) {
        row.set.emplace_back(value.key, value.text);
        sim::assign(changed, value, row.diagnostics);
    }
    if (row.diagnostics.has_errors()) return row;
    std::optional<sim::Scenario> scenario = sim::read_scenario(changed, path, row.diagnostics);
    std::string explanation;
    if (!scenario || !search_order(*scenario, row.diagnostics, explanation)) return row;
    const schedule::Plan& plan = scenario->file.plan;
    sim::EvaluateOptions options;
    options.constants = posterior.cost_constants();
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, plan, row.diagnostics, options);
    if (!evaluation) return row;
    sim::apply_site_effects(*evaluation, posterior);
    row.result = sim::to_value(*evaluation, scenario->graph, plan);
    sim::add_to(row.result,
                sim::intervals_of(*evaluation, scenario->graph, scenario->cluster, plan, posterior),
                *evaluation);
    return row;
}

Reply sweep(const core::Value& document, const SimulateRequest& request,
            const std::vector<std::vector<sim::Assignment>>& axes, const sim::Posterior& posterior) {
    std::vector<sim::SweepRow> rows;
    bool any_valid = false, any_fits = false;
    for (const std::vector<sim::Assignment>& point : combinations(axes)) {
        rows.push_back(predict_point(document, request.scenario.path, point, posterior));
        if (rows.back().result.is_null()) continue;
        any_valid = true;
        any_fits = any_fits || rows.back().result.find("fits")->boolean();
    }
    Reply reply{.outcome = !any_valid ? Outcome::wrong_input
                           : any_fits ? Outcome::good
                                      : Outcome::no_plan,
                .document = sim::sweep_value(rows),
                .text = sim::sweep_text(rows, request.width)};
    if (!any_valid) {
        reply.diagnostics = rows.front().diagnostics;
        reply.document["errors"] = *core::to_value(reply.diagnostics).find("errors");
    }
    if (request.csv) reply.files.push_back({*request.csv, sim::sweep_csv(rows)});
    return reply;
}

// Where a plan that does not fit fails.
std::vector<sim::TraceMark> marks_of(const sim::Evaluation& evaluation) {
    std::vector<sim::TraceMark> marks;
    if (const auto& failure = evaluation.out_of_memory)
        marks.push_back({failure->performer, schedule::Stream::compute, failure->time,
                         "out of memory: " + core::format(failure->needed - failure->available) + " short"});
    return marks;
}

core::Value messages_of(const core::Diagnostics& diagnostics) {
    core::Value lines = core::Value::array();
    for (const core::Diagnostic& entry : diagnostics.entries()) lines.append(entry.message);
    return lines;
}

// The peaks of the memory table, by performer of the timeline.
std::vector<core::Bytes> peaks_of(const sim::Evaluation& evaluation) {
    std::vector<core::Bytes> peaks;
    for (const std::int32_t number : evaluation.timeline.class_of)
        for (const sim::ClassMemory& row : evaluation.memory)
            if (row.pipeline == evaluation.program->classes[number].pipeline) {
                peaks.push_back(row.peak);
                break;
            }
    return peaks;
}

std::string columns_of(const sim::Scenario& scenario, const sim::Evaluation& evaluation) {
    return sim::timeline_columns(*evaluation.program, scenario.graph,
                                 {{.timeline = evaluation.timeline,
                                   .memory = evaluation.memory_timeline,
                                   .peaks = peaks_of(evaluation)}});
}

OutputFile page_of(const std::string& path, const sim::Scenario& scenario, const sim::Evaluation& evaluation,
                   const Reply& reply) {
    return report_file(path, {.kind = ReportKind::step,
                              .title = scenario.question.empty() ? scenario.path : scenario.question,
                              .answer = reply.document,
                              .text = reply.text,
                              .timeline = columns_of(scenario, evaluation)});
}

std::vector<OutputFile> files_of(const SimulateRequest& request, const sim::Scenario& scenario,
                                 const sim::Evaluation& evaluation, const Reply& reply,
                                 const core::Value& figures) {
    std::vector<OutputFile> files;
    if (request.trace)
        files.push_back(
            {*request.trace, sim::chrome_trace(*evaluation.program, scenario.graph, evaluation.timeline,
                                               evaluation.memory_timeline, marks_of(evaluation))});
    if (request.timeline) files.push_back({*request.timeline, columns_of(scenario, evaluation)});
    if (request.html) files.push_back(page_of(*request.html, scenario, evaluation, reply));
    if (request.csv) files.push_back({*request.csv, sim::sweep_csv({{{}, figures, {}}})});
    return files;
}

Reply predict(const core::Value& document, const SimulateRequest& request, const sim::Posterior& posterior) {
    core::Diagnostics diagnostics;
    std::optional<sim::Scenario> scenario = sim::read_scenario(document, request.scenario.path, diagnostics);
    if (!scenario) return refusal(std::move(diagnostics));
    // The report shows the partition that is simulated.
    schedule::Plan& plan = scenario->file.plan;
    if (std::optional<schedule::Partition> partition =
            sim::complete_partition(plan, scenario->graph, scenario->cluster))
        plan.partition = std::move(*partition);
    std::string explanation;
    if (!search_order(*scenario, diagnostics, explanation)) return refusal(std::move(diagnostics));
    sim::EvaluateOptions evaluate_options;
    evaluate_options.keeps_timeline = request.explains || request.trace || request.timeline || request.html;
    evaluate_options.is_folded = !request.is_unfolded;
    evaluate_options.constants = posterior.cost_constants();
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, plan, diagnostics, evaluate_options);
    if (!evaluation) return refusal(std::move(diagnostics));
    sim::apply_site_effects(*evaluation, posterior);
    const sim::PredictionIntervals intervals = sim::intervals_of(
        *evaluation, scenario->graph, scenario->cluster, plan, posterior, {.explains = true});
    if (!explanation.empty()) evaluation->assumptions.push_back(explanation);

    const std::string report = sim::text_report(*evaluation, scenario->graph, scenario->cluster, plan,
                                                scenario->question, &intervals);
    std::optional<sim::Explanation> why;
    if (request.explains)
        why = sim::explain(*evaluation, scenario->graph, scenario->cluster, plan,
                           {.constants = evaluate_options.constants});
    core::Value figures = sim::to_value(*evaluation, scenario->graph, plan);
    sim::add_to(figures, intervals, *evaluation);
    Reply reply{
        .outcome = evaluation->fits ? Outcome::good : Outcome::no_plan, .document = figures, .text = report};
    if (!scenario->question.empty()) reply.document["question"] = scenario->question;
    reply.document["plan"] = schedule::to_value(plan);
    if (why) {
        reply.document["explanation"] = sim::to_value(*why);
        reply.text += '\n' + sim::text_of(*why);
    }
    if (!diagnostics.entries().empty()) reply.document["warnings"] = messages_of(diagnostics);
    reply.diagnostics = std::move(diagnostics);
    reply.files = files_of(request, *scenario, *evaluation, reply, figures);
    return reply;
}

}  // namespace

Reply simulate(const SimulateRequest& request, core::Diagnostics diagnostics) {
    if (request.html) check_report_pages("--html", diagnostics);
    const std::optional<core::Value> document = load_scenario(request.scenario, diagnostics);
    std::vector<std::vector<sim::Assignment>> axes;
    for (const std::string& text : request.sweep)
        axes.push_back(sim::parse_sweep(text, "--sweep", diagnostics));
    std::optional<sim::Posterior> calibration;
    if (request.calibration) calibration = sim::load_posterior(*request.calibration, diagnostics);
    if (diagnostics.has_errors() || !document) {
        if (document)
            sim::read_scenario(*document, request.scenario.path, diagnostics);  // what else is wrong
        return refusal(std::move(diagnostics));
    }
    const sim::Posterior& posterior = calibration ? *calibration : sim::shipped_posterior();
    return axes.empty() ? predict(*document, request, posterior) : sweep(*document, request, axes, posterior);
}

}  // namespace api
