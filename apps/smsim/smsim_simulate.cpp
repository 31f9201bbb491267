#include "apps/smsim/smsim_simulate.h"

#include <fmt/core.h>

#include <optional>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/searched_order.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/order/plan_order.h"
#include "schedule/plan/explicit_order.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "sim/report/report.h"
#include "sim/report/trace.h"
#include "sim/scenario.h"
#include "sim/uncertainty/interval.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim SCENARIO.toml [--set KEY=VALUE]... [--sweep KEY=A,B,C]... [--explain] [--trace FILE] "
    "[--html FILE] [--csv FILE] [--calibration FILE] [--json]\n"
    "\n"
    "Predicts one training step of a scenario: time, throughput, memory per rank, cost, and where the time "
    "goes.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: plan.micro_batch=2, cluster.nodes=32, "
    "cluster.instance=p4de.24xlarge\n"
    "  --sweep KEY=A,B,C    one prediction for each value; several sweeps are combined\n"
    "  --explain            time by kind of operator, communication by link (exposed or hidden), and how the "
    "step moves with every figure it rests on\n"
    "  --trace FILE         timeline as Chrome trace JSON, for ui.perfetto.dev (not with --sweep)\n"
    "  --html FILE          timeline as a page of its own (not with --sweep)\n"
    "  --csv FILE           the figures as a table, one line a prediction\n"
    "  --unfolded           every rank on its own instead of one for all that do the same (not with "
    "--sweep)\n"
    "  --calibration FILE   constants and site effects of one installation, as smsim calibrate writes them\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine "
    "failure.\n"
    "\n"
    "Example:\n"
    "  smsim scenarios/llama2_7b_p4d.toml --set plan.recompute=full --sweep plan.micro_batch=1,2,4 --csv "
    "sweep.csv\n";

struct Request {
    std::string scenario;                         // empty only where --help or a diagnostic ends the command
    std::optional<std::string> trace, html, csv;  // files to write
    std::optional<std::string> calibration;       // file to read
    std::vector<std::string> set, sweep;
    bool explains = false, as_json = false, wants_help = false, is_unfolded = false;
};

Request read_arguments(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments,
                    {{"--set", "--sweep", "--trace", "--html", "--csv", "--calibration"},
                     {"--explain", "--unfolded", "--json", "--help"}},
                    diagnostics);
    Request request;
    request.wants_help = options.has("--help");
    request.as_json = options.has("--json");
    request.explains = options.has("--explain");
    request.is_unfolded = options.has("--unfolded");
    request.set = options.all("--set");
    request.sweep = options.all("--sweep");
    request.calibration = options.text("--calibration");
    if (request.wants_help) return request;
    request.scenario = options.only_positional("SCENARIO.toml", "scenario",
                                               "smsim SCENARIO.toml; smsim --help shows an example");
    for (const auto& [name, path] : {std::pair("--trace", &request.trace), std::pair("--html", &request.html),
                                     std::pair("--csv", &request.csv)}) {
        if (!options.has(name)) continue;
        *path = options.text(name).value_or("");
        check_output(name, **path, diagnostics);
    }
    if (request.sweep.empty()) return request;
    if (request.is_unfolded)
        options.error("--unfolded", "--unfolded: a sweep is folded", "leave out one of the two");
    for (const char* name : {"--trace", "--html", "--explain"})
        if (options.has(name))
            options.error(name, fmt::format("{}: a sweep has no single timeline", name),
                          "leave out --sweep, or use --set for the one point to draw");
    return request;
}

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

int sweep(const core::Value& document, const Request& request,
          const std::vector<std::vector<sim::Assignment>>& axes, const sim::Posterior& posterior,
          std::ostream& out, std::ostream& err) {
    std::vector<sim::SweepRow> rows;
    bool any_valid = false, any_fits = false;
    for (const std::vector<sim::Assignment>& point : combinations(axes)) {
        rows.push_back(predict_point(document, request.scenario, point, posterior));
        if (rows.back().result.is_null()) continue;
        any_valid = true;
        any_fits = any_fits || rows.back().result.find("fits")->boolean();
    }
    core::Value document_of_rows = sim::sweep_value(rows);
    if (!any_valid) document_of_rows["errors"] = *core::to_value(rows.front().diagnostics).find("errors");
    if (request.as_json) out << core::to_json(document_of_rows) << '\n';
    else out << sim::sweep_text(rows);
    if (!any_valid && !request.as_json) err << core::format(rows.front().diagnostics);
    if (request.csv)
        if (const int code = write_outputs({{*request.csv, sim::sweep_csv(rows)}}, err); code != good)
            return code;
    if (!any_valid) return wrong_input;
    return any_fits ? good : no_plan;
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

int predict(const core::Value& document, const Request& request, const sim::Posterior& posterior,
            std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    std::optional<sim::Scenario> scenario = sim::read_scenario(document, request.scenario, diagnostics);
    if (!scenario) return show(diagnostics, request.as_json, out, err);
    // The report shows the partition that is simulated.
    schedule::Plan& plan = scenario->file.plan;
    if (std::optional<schedule::Partition> partition =
            sim::complete_partition(plan, scenario->graph, scenario->cluster))
        plan.partition = std::move(*partition);
    std::string explanation;
    if (!search_order(*scenario, diagnostics, explanation))
        return show(diagnostics, request.as_json, out, err);
    sim::EvaluateOptions evaluate_options;
    evaluate_options.keeps_timeline = request.explains || request.trace || request.html;
    evaluate_options.is_folded = !request.is_unfolded;
    evaluate_options.constants = posterior.cost_constants();
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, plan, diagnostics, evaluate_options);
    if (!evaluation) return show(diagnostics, request.as_json, out, err);
    sim::apply_site_effects(*evaluation, posterior);
    const sim::PredictionIntervals intervals = sim::intervals_of(
        *evaluation, scenario->graph, scenario->cluster, plan, posterior, {.explains = true});
    if (!explanation.empty()) evaluation->assumptions.push_back(explanation);
    if (!request.as_json) err << core::format(diagnostics);

    const std::string report = sim::text_report(*evaluation, scenario->graph, scenario->cluster, plan,
                                                scenario->question, &intervals);
    std::optional<sim::Explanation> why;
    if (request.explains)
        why = sim::explain(*evaluation, scenario->graph, scenario->cluster, plan,
                           {.constants = evaluate_options.constants});
    core::Value value = sim::to_value(*evaluation, scenario->graph, plan);
    sim::add_to(value, intervals, *evaluation);
    if (request.as_json) {
        core::Value result = value;
        if (!scenario->question.empty()) result["question"] = scenario->question;
        result["plan"] = schedule::to_value(plan);
        if (why) result["explanation"] = sim::to_value(*why);
        if (!diagnostics.entries().empty()) result["warnings"] = messages_of(diagnostics);
        out << core::to_json(result) << '\n';
    } else {
        out << report;
        if (why) out << '\n' << sim::text_of(*why);
    }
    std::vector<OutputFile> files;
    if (request.trace)
        files.push_back(
            {*request.trace, sim::chrome_trace(*evaluation->program, evaluation->timeline,
                                               evaluation->memory_timeline, marks_of(*evaluation))});
    if (request.html)
        files.push_back(
            {*request.html,
             sim::html_timeline(*evaluation->program, evaluation->timeline, evaluation->memory_timeline,
                                scenario->question.empty() ? request.scenario : scenario->question, report)});
    if (request.csv) files.push_back({*request.csv, sim::sweep_csv({{{}, value, {}}})});
    if (const int code = write_outputs(files, err); code != good) return code;
    return evaluation->fits ? good : no_plan;
}

}  // namespace

int run_simulate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    const Request request = read_arguments(arguments, diagnostics);
    if (request.wants_help) {
        out << help;
        return good;
    }
    std::optional<core::Value> document;
    if (!request.scenario.empty()) document = sim::load_scenario_document(request.scenario, diagnostics);
    std::vector<std::vector<sim::Assignment>> axes;
    for (const std::string& text : request.set)
        if (const std::optional<sim::Assignment> assignment =
                sim::parse_assignment(text, "--set", diagnostics);
            assignment && document)
            sim::assign(*document, *assignment, diagnostics);
    for (const std::string& text : request.sweep)
        axes.push_back(sim::parse_sweep(text, "--sweep", diagnostics));
    std::optional<sim::Posterior> calibration;
    if (request.calibration) calibration = sim::load_posterior(*request.calibration, diagnostics);
    if (diagnostics.has_errors() || !document) {
        if (document) sim::read_scenario(*document, request.scenario, diagnostics);  // what else is wrong
        return show(diagnostics, as_json, out, err);
    }
    const sim::Posterior& posterior = calibration ? *calibration : sim::shipped_posterior();
    return axes.empty() ? predict(*document, request, posterior, out, err)
                        : sweep(*document, request, axes, posterior, out, err);
}

}  // namespace apps
