#include "apps/smsim_simulate.h"

#include <boost/program_options.hpp>
#include <optional>
#include <ostream>

#include "apps/command.h"
#include "core/document.h"
#include "planner/plan_order.h"
#include "schedule/explicit_order.h"
#include "schedule/partition.h"
#include "sim/evaluate.h"
#include "sim/explain.h"
#include "sim/report.h"
#include "sim/scenario.h"
#include "sim/trace.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim SCENARIO.toml [--set KEY=VALUE]... [--sweep KEY=A,B,C]... [--explain] [--trace FILE] [--html FILE] [--csv FILE] [--json]\n"
    "\n"
    "Predicts one training step of a scenario: time, throughput, memory per rank, cost, and where the time goes.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: plan.micro_batch=2, cluster.nodes=32, cluster.instance=p4de.24xlarge\n"
    "  --sweep KEY=A,B,C    one prediction for each value; several sweeps are combined\n"
    "  --explain            time by kind of operator, communication by link (exposed or hidden), and how the step moves with every figure it rests on\n"
    "  --trace FILE         timeline as Chrome trace JSON, for ui.perfetto.dev (not with --sweep)\n"
    "  --html FILE          timeline as a page of its own (not with --sweep)\n"
    "  --csv FILE           the figures as a table, one line a prediction\n"
    "  --unfolded           every rank on its own instead of one for all that do the same (not with --sweep)\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim scenarios/llama2_7b_p4d.toml --set plan.recompute=full --sweep plan.micro_batch=1,2,4 --csv sweep.csv\n";

struct Options {
    std::string scenario, trace, html, csv;
    std::vector<std::string> set, sweep;
    bool explains = false, as_json = false, wants_help = false, is_unfolded = false;
};

std::optional<Options> parse(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    namespace po = boost::program_options;
    Options options;
    std::vector<std::string> scenarios;
    po::options_description description;
    description.add_options()("help,h", po::bool_switch(&options.wants_help))("json", po::bool_switch(&options.as_json))("explain", po::bool_switch(&options.explains))("unfolded", po::bool_switch(&options.is_unfolded))(
        "set", po::value(&options.set)->composing())("sweep", po::value(&options.sweep)->composing())("trace", po::value(&options.trace))(
        "html", po::value(&options.html))("csv", po::value(&options.csv))("scenario", po::value(&scenarios));
    po::positional_options_description positions;
    positions.add("scenario", -1);
    try {
        po::variables_map values;
        // No abbreviations: a script must not change its meaning when an option is added.
        const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
        po::store(po::command_line_parser(arguments).options(description).positional(positions).style(style).run(), values);
        po::notify(values);
    } catch (const po::error& refusal) {
        diagnostics.error({}, "", refusal.what(), "smsim --help shows the options");
        return std::nullopt;
    }
    if (options.wants_help) return options;
    if (scenarios.size() != 1) {
        diagnostics.error({}, "", scenarios.empty() ? "no scenario is given" : "more than one scenario is given",
                          "smsim SCENARIO.toml; smsim --help shows an example");
        return std::nullopt;
    }
    options.scenario = scenarios.front();
    if (!options.sweep.empty() && options.is_unfolded) {
        diagnostics.error({}, "--unfolded", "a sweep is folded", "leave out one of the two");
        return std::nullopt;
    }
    if (!options.sweep.empty() && (!options.trace.empty() || !options.html.empty() || options.explains)) {
        diagnostics.error({}, !options.trace.empty() ? "--trace" : !options.html.empty() ? "--html" : "--explain", "a sweep has no single timeline",
                          "leave out --sweep, or use --set for the one point to draw");
        return std::nullopt;
    }
    return options;
}

// Every combination of the swept values, the last key varying fastest.
std::vector<std::vector<sim::Assignment>> combinations(const std::vector<std::vector<sim::Assignment>>& axes) {
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

// schedule = "auto" becomes the order found; false when it cannot be searched.
bool search_order(sim::Scenario& scenario, core::Diagnostics& diagnostics, std::string& explanation) {
    schedule::Plan& plan = scenario.file.plan;
    if (!schedule::is_searched_order(plan.schedule)) return true;
    std::optional<planner::OrderedPlan> ordered = planner::with_searched_order(scenario.graph, scenario.cluster, plan, diagnostics);
    if (!ordered) return false;
    plan = std::move(ordered->plan);
    explanation = std::move(ordered->explanation);
    return true;
}

sim::SweepRow predict_point(const core::Value& document, const std::string& path, const std::vector<sim::Assignment>& point) {
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
    const std::optional<sim::Evaluation> evaluation = sim::evaluate(scenario->graph, scenario->cluster, scenario->file.plan, row.diagnostics);
    if (evaluation) row.result = sim::to_value(*evaluation, scenario->graph, scenario->file.plan);
    return row;
}

int sweep(const core::Value& document, const Options& options, const std::vector<std::vector<sim::Assignment>>& axes, std::ostream& out, std::ostream& err) {
    std::vector<sim::SweepRow> rows;
    bool any_valid = false, any_fits = false;
    for (const std::vector<sim::Assignment>& point : combinations(axes)) {
        rows.push_back(predict_point(document, options.scenario, point));
        if (rows.back().result.is_null()) continue;
        any_valid = true;
        any_fits = any_fits || rows.back().result.find("fits")->boolean();
    }
    core::Value document_of_rows = sim::sweep_value(rows);
    if (!any_valid) document_of_rows["errors"] = *core::to_value(rows.front().diagnostics).find("errors");
    if (options.as_json) out << core::to_json(document_of_rows) << '\n';
    else out << sim::sweep_text(rows);
    if (!any_valid && !options.as_json) err << core::format(rows.front().diagnostics);
    if (!options.csv.empty())
        if (const int code = write_outputs({{options.csv, sim::sweep_csv(rows)}}, err); code != good) return code;
    if (!any_valid) return wrong_input;
    return any_fits ? good : no_plan;
}

int predict(const core::Value& document, const Options& options, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    std::optional<sim::Scenario> scenario = sim::read_scenario(document, options.scenario, diagnostics);
    if (!scenario) return show(diagnostics, options.as_json, out, err);
    // The report shows the partition that is simulated.
    schedule::Plan& plan = scenario->file.plan;
    if (std::optional<schedule::Partition> partition = schedule::complete_partition(plan, scenario->graph)) plan.partition = std::move(*partition);
    std::string explanation;
    if (!search_order(*scenario, diagnostics, explanation)) return show(diagnostics, options.as_json, out, err);
    sim::EvaluateOptions evaluate_options;
    evaluate_options.keeps_timeline = options.explains || !options.trace.empty() || !options.html.empty();
    evaluate_options.is_folded = !options.is_unfolded;
    std::optional<sim::Evaluation> evaluation = sim::evaluate(scenario->graph, scenario->cluster, plan, diagnostics, evaluate_options);
    if (!evaluation) return show(diagnostics, options.as_json, out, err);
    if (!explanation.empty()) evaluation->assumptions.push_back(explanation);
    if (!options.as_json) err << core::format(diagnostics);

    const std::string report = sim::text_report(*evaluation, scenario->graph, scenario->cluster, plan, scenario->question);
    std::vector<sim::TraceMark> marks;
    if (const auto& failure = evaluation->out_of_memory)
        marks.push_back({failure->performer, schedule::Stream::compute, failure->time, "out of memory: " + core::format(failure->needed - failure->available) + " short"});
    std::optional<sim::Explanation> why;
    if (options.explains) why = sim::explain(*evaluation, scenario->graph, scenario->cluster, plan);
    const core::Value value = sim::to_value(*evaluation, scenario->graph, plan);
    if (options.as_json) {
        core::Value result = value;
        if (!scenario->question.empty()) result["question"] = scenario->question;
        result["plan"] = schedule::to_value(plan);
        if (why) result["explanation"] = sim::to_value(*why);
        if (!diagnostics.entries().empty()) {
            core::Value lines = core::Value::array();
            for (const core::Diagnostic& entry : diagnostics.entries()) lines.append(entry.message);
            result["warnings"] = std::move(lines);
        }
        out << core::to_json(result) << '\n';
    } else {
        out << report;
        if (why) out << '\n' << sim::text_of(*why);
    }
    std::vector<OutputFile> files;
    if (!options.trace.empty()) files.push_back({options.trace, sim::chrome_trace(*evaluation->program, evaluation->timeline, evaluation->memory_timeline, marks)});
    if (!options.html.empty())
        files.push_back({options.html, sim::html_timeline(*evaluation->program, evaluation->timeline, evaluation->memory_timeline,
                                                          scenario->question.empty() ? options.scenario : scenario->question, report)});
    if (!options.csv.empty()) files.push_back({options.csv, sim::sweep_csv({{{}, value, {}}})});
    if (const int code = write_outputs(files, err); code != good) return code;
    return evaluation->fits ? good : no_plan;
}

}  // namespace

int run_simulate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    const std::optional<Options> options = parse(arguments, diagnostics);
    if (!options) return show(diagnostics, as_json, out, err);
    if (options->wants_help) {
        out << help;
        return good;
    }
    for (const auto& [option, path] : {std::pair("--trace", options->trace), std::pair("--html", options->html), std::pair("--csv", options->csv)})
        if (!path.empty()) check_output(option, path, diagnostics);
    std::optional<core::Value> document = sim::load_scenario_document(options->scenario, diagnostics);
    if (!document) return show(diagnostics, as_json, out, err);
    for (const std::string& text : options->set)
        if (const std::optional<sim::Assignment> assignment = sim::parse_assignment(text, "--set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    std::vector<std::vector<sim::Assignment>> axes;
    for (const std::string& text : options->sweep) axes.push_back(sim::parse_sweep(text, "--sweep", diagnostics));
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    return axes.empty() ? predict(*document, *options, out, err) : sweep(*document, *options, axes, out, err);
}

}  // namespace apps
