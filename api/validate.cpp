#include "api/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "api/options.h"
#include "api/report_page/report_page.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "sim/report/report.h"
#include "validation/prepared_run.h"
#include "validation/published_run.h"
#include "validation/validate.h"

namespace api {

namespace {

std::string text_of(const validation::Validation& validation, std::size_t worst) {
    std::string out;
    out += fmt::format("{:<24} {:>5} {:>8} {:>8} {:>8} {:>8}  {}\n", "group", "rows", "MAPE %", "median",
                       "bias", "p95", "worst");
    for (const validation::GroupScore& group : validation.groups)
        out += fmt::format("{:<24} {:>5} {:>8.1f} {:>8.1f} {:>+8.1f} {:>8.1f}  {}\n", group.group, group.rows,
                           100 * group.mape, 100 * group.median, 100 * group.bias, 100 * group.p95,
                           group.worst_id);
    out += fmt::format("{:<24} {:>5} {:>8.2f}\n", "macro average", validation.rows.size(),
                       100 * validation.macro_mape);
    if (validation.memory_mape)
        out += fmt::format("peak memory              MAPE {:.1f} %\n", 100 * *validation.memory_mape);
    if (validation.coverage_80)
        out += fmt::format("80 % intervals           hold {:.1f} % of the rows\n",
                           100 * *validation.coverage_80);
    for (const validation::SweepScore& sweep : validation.sweeps)
        out += fmt::format("sweep {:<50} {:>3} plans  Spearman {:>5.2f}  regret {:>5.1f} %\n", sweep.id,
                           sweep.plans, sweep.spearman, 100 * sweep.regret);

    std::vector<const validation::ScoredRow*> refused, predicted;
    for (const validation::ScoredRow& row : validation.rows)
        (row.status == validation::PredictionStatus::ok ? predicted : refused).push_back(&row);
    const auto error = [](const validation::ScoredRow* row) {
        return std::abs(row->predicted / row->measured - 1);
    };
    std::stable_sort(predicted.begin(), predicted.end(),
                     [&](const auto* a, const auto* b) { return error(a) > error(b); });
    if (worst > 0 && !predicted.empty()) out += "\nworst rows\n";
    for (std::size_t i = 0; i < std::min(worst, predicted.size()); ++i)
        out += fmt::format("  {:<14} predicted {:>9} measured {:>9}  {:+.1f} %\n", predicted[i]->id,
                           core::format(predicted[i]->predicted), core::format(predicted[i]->measured),
                           100 * (predicted[i]->predicted / predicted[i]->measured - 1));
    if (!refused.empty()) out += fmt::format("\n{} rows not predicted\n", refused.size());
    for (const validation::ScoredRow* row : refused)
        out += fmt::format("  {:<14} {}: {}\n", row->id, validation::name_of(row->status), row->reason);
    return out;
}

// "memory_rate=0.9"; what is wrong with it, or nothing.
std::string set_constant(const std::string& assignment, sim::CostConstants& constants) {
    const std::size_t at = assignment.find('=');
    const std::string name = assignment.substr(0, at);
    const double value = at == std::string::npos
                             ? std::nan("")
                             : core::parse_real(assignment.substr(at + 1)).value_or(std::nan(""));
    for (const sim::NamedConstant& constant : sim::named_constants()) {
        if (name != constant.name) continue;
        if (!(value >= constant.least && value <= constant.greatest))
            return fmt::format("--constant {}: not a number from {} to {}", assignment, constant.least,
                               constant.greatest);
        constants.*constant.value = value;
        return {};
    }
    return "--constant " + assignment + ": no constant of that name";
}

// One row: its prediction, where the time goes and what it rests on.
Reply explain_row(const std::string& id, const core::CsvTable& runs, const core::CsvTable& clusters,
                  const sim::CostConstants& constants) {
    core::Diagnostics diagnostics;
    for (const core::CsvRow& row : runs.rows) {
        if (runs.cell(row, "id") != id) continue;
        std::string unsupported;
        const std::optional<validation::PublishedRun> run =
            validation::read_run(runs, row, clusters, diagnostics, unsupported);
        if (!run && !unsupported.empty())
            diagnostics.error(runs.location(row, "model"), "model", unsupported, "");
        const std::optional<validation::PreparedRun> prepared =
            run ? validation::prepare(*run, diagnostics, constants) : std::nullopt;
        sim::EvaluateOptions options;
        options.constants = constants;
        options.keeps_timeline = true;
        const auto evaluation =
            prepared ? sim::evaluate(prepared->graph, prepared->cluster, prepared->plan, diagnostics, options)
                     : std::nullopt;
        if (!evaluation) return refusal(std::move(diagnostics));
        const sim::Explanation why = sim::explain(*evaluation, prepared->graph, prepared->cluster,
                                                  prepared->plan, {.constants = constants});
        const std::string question = fmt::format(
            "{}: measured {}, predicted {} ({:+.1f} %)", id, core::format(run->measured),
            core::format(evaluation->step_time), 100 * (evaluation->step_time / run->measured - 1));
        Reply reply{.document = sim::to_value(*evaluation, prepared->graph, prepared->plan),
                    .text = sim::text_report(*evaluation, prepared->graph, prepared->cluster, prepared->plan,
                                             question) +
                            '\n' + sim::text_of(why)};
        reply.document["explanation"] = sim::to_value(why);
        return reply;
    }
    diagnostics.error({}, "--explain",
                      fmt::format("--explain {}: {} has no such row", core::in_quotes(id), runs.file),
                      "give an id of the file's first column");
    return refusal(std::move(diagnostics));
}

struct Question {
    std::string file, clusters;
    std::optional<std::string> sweeps, explained, calibration, html;
    std::size_t worst = 0;  // rows to show
    sim::CostConstants constants = {};
};

Question read_question(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options given(arguments, validate_options(), diagnostics);
    Question question;
    question.file = given.only_positional("FILE.csv", "file of measurements", "see smsim validate --help");
    question.clusters = given.text("--clusters").value_or("");
    question.sweeps = given.text("--sweeps");
    question.explained = given.text("--explain");
    if (!given.text("--clusters"))
        given.error("--clusters", "no file of clusters given", "--clusters clusters.csv");
    question.worst = given.integer("--worst", 0, 1 << 30).value_or(10);
    for (const std::string& assignment : given.list("--constant"))
        if (const std::string wrong = set_constant(assignment, question.constants); !wrong.empty())
            given.error("--constant", wrong, "docs/accuracy.md lists names and ranges");
    question.calibration = given.text("--calibration");
    question.html = given.text("--html");
    if (question.html) check_report("--html", *question.html, diagnostics);
    if (question.html && question.explained)
        given.error("--html", "--html: a page is of all rows, and --explain asks for one",
                    "leave out one of the two");
    if (question.calibration && given.has("--constant"))
        given.error("--constant", "--constant: --calibration brings the constants",
                    "leave out one of the two");
    return question;
}

}  // namespace

OptionNames validate_options() {
    return {.with_value = {"--clusters", "--sweeps", "--worst", "--constant", "--explain", "--calibration",
                           "--html"},
            .flags = {"--help", "--json"}};
}

Reply validate(const std::vector<std::string>& arguments, const Watch& watch) {
    core::Diagnostics diagnostics;
    const Question question = read_question(arguments, diagnostics);
    if (diagnostics.has_errors()) return refusal(std::move(diagnostics));
    std::optional<sim::Posterior> calibration;
    if (question.calibration) calibration = sim::load_posterior(*question.calibration, diagnostics);
    validation::ValidateOptions options;
    options.calibration = calibration ? &*calibration : nullptr;
    options.constants = calibration ? calibration->cost_constants() : question.constants;
    options.has_intervals = true;
    const auto runs = core::load_csv(question.file, validation::run_columns(), diagnostics);
    const auto clusters = core::load_csv(question.clusters, validation::cluster_columns(), diagnostics);
    std::optional<core::CsvTable> sweeps;
    if (question.sweeps) sweeps = core::load_csv(*question.sweeps, {"sweep_id", "ids"}, diagnostics);
    if (diagnostics.has_errors() || !runs || !clusters) return refusal(std::move(diagnostics));

    if (question.explained) return explain_row(*question.explained, *runs, *clusters, options.constants);
    options.progress = [&watch](std::size_t done, std::size_t all) {
        if (watch.progress) watch.progress({.done = done, .all = all});
    };
    options.is_stopped = watch.is_stopped;
    const auto validation =
        validation::validate(*runs, *clusters, sweeps ? &*sweeps : nullptr, diagnostics, options);
    if (diagnostics.has_errors()) return refusal(std::move(diagnostics));
    core::require(validation.has_value(), "a validation without errors has an answer");
    const bool is_stopped = validation->left_out > 0;
    if (is_stopped && validation->rows.empty()) throw Stopped{};
    Reply reply{.outcome = is_stopped ? Outcome::no_plan : Outcome::good,
                .document = validation::to_value(*validation),
                .text = text_of(*validation, question.worst),
                .diagnostics = std::move(diagnostics),
                .is_stopped = is_stopped};
    if (is_stopped) reply.document["rows_left_out"] = validation->left_out;
    if (question.html)
        reply.files.push_back(
            report_file(*question.html, {.kind = ReportKind::validation,
                                         .title = "Predicted against measured: " + question.file,
                                         .answer = reply.document,
                                         .text = reply.text}));
    return reply;
}

}  // namespace api
