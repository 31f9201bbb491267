#include "apps/smsim/smsim_validate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/explain.h"
#include "sim/report/report.h"
#include "validation/prepared_run.h"
#include "validation/published_run.h"
#include "validation/validate.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim validate FILE.csv --clusters clusters.csv [--sweeps sweeps.csv] [--worst N] [--explain ID] "
    "[--constant NAME=VALUE]... [--calibration FILE] [--json]\n"
    "\n"
    "Predicts every row of a file of published measurements and scores the predictions: per group and macro "
    "mean absolute\n"
    "percentage error, median, bias, 95th percentile; peak memory; rank correlation and regret over sweeps.\n"
    "A row that cannot be predicted says why and counts as 100 %.\n"
    "\n"
    "  --clusters FILE  hardware the rows ran on\n"
    "  --sweeps FILE    rows that are alternatives of one another\n"
    "  --worst N        show the N worst rows (default 10)\n"
    "  --explain ID     one row instead of all: where its predicted time goes, and what it rests on\n"
    "  --constant N=V   another value of a constant of the cost model (docs/accuracy.md lists them)\n"
    "  --calibration F  what smsim calibrate learned of an installation (not with --constant)\n"
    "  --json           one JSON document on stdout\n"
    "\n"
    "Example:\n"
    "  smsim validate measurements.csv --clusters clusters.csv --sweeps sweeps.csv\n";

void print(const validation::Validation& validation, std::size_t worst, std::ostream& out) {
    out << fmt::format("{:<24} {:>5} {:>8} {:>8} {:>8} {:>8}  {}\n", "group", "rows", "MAPE %", "median",
                       "bias", "p95", "worst");
    for (const validation::GroupScore& group : validation.groups)
        out << fmt::format("{:<24} {:>5} {:>8.1f} {:>8.1f} {:>+8.1f} {:>8.1f}  {}\n", group.group, group.rows,
                           100 * group.mape, 100 * group.median, 100 * group.bias, 100 * group.p95,
                           group.worst_id);
    out << fmt::format("{:<24} {:>5} {:>8.2f}\n", "macro average", validation.rows.size(),
                       100 * validation.macro_mape);
    if (validation.memory_mape)
        out << fmt::format("peak memory              MAPE {:.1f} %\n", 100 * *validation.memory_mape);
    if (validation.coverage_80)
        out << fmt::format("80 % intervals           hold {:.1f} % of the rows\n",
                           100 * *validation.coverage_80);
    for (const validation::SweepScore& sweep : validation.sweeps)
        out << fmt::format("sweep {:<50} {:>3} plans  Spearman {:>5.2f}  regret {:>5.1f} %\n", sweep.id,
                           sweep.plans, sweep.spearman, 100 * sweep.regret);

    std::vector<const validation::ScoredRow*> refused, predicted;
    for (const validation::ScoredRow& row : validation.rows)
        (row.status == validation::PredictionStatus::ok ? predicted : refused).push_back(&row);
    const auto error = [](const validation::ScoredRow* row) {
        return std::abs(row->predicted / row->measured - 1);
    };
    std::stable_sort(predicted.begin(), predicted.end(),
                     [&](const auto* a, const auto* b) { return error(a) > error(b); });
    if (worst > 0 && !predicted.empty()) out << "\nworst rows\n";
    for (std::size_t i = 0; i < std::min(worst, predicted.size()); ++i)
        out << fmt::format("  {:<14} predicted {:>9} measured {:>9}  {:+.1f} %\n", predicted[i]->id,
                           core::format(predicted[i]->predicted), core::format(predicted[i]->measured),
                           100 * (predicted[i]->predicted / predicted[i]->measured - 1));
    if (!refused.empty()) out << fmt::format("\n{} rows not predicted\n", refused.size());
    for (const validation::ScoredRow* row : refused)
        out << fmt::format("  {:<14} {}: {}\n", row->id, validation::name_of(row->status), row->reason);
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
int explain_row(const std::string& id, const core::CsvTable& runs, const core::CsvTable& clusters,
                const sim::CostConstants& constants, bool as_json, std::ostream& out, std::ostream& err) {
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
        if (!evaluation) return show(diagnostics, as_json, out, err);
        const sim::Explanation why = sim::explain(*evaluation, prepared->graph, prepared->cluster,
                                                  prepared->plan, {.constants = constants});
        if (as_json) {
            core::Value document = sim::to_value(*evaluation, prepared->graph, prepared->plan);
            document["explanation"] = sim::to_value(why);
            out << core::to_json(document) << '\n';
            return good;
        }
        const std::string question = fmt::format(
            "{}: measured {}, predicted {} ({:+.1f} %)", id, core::format(run->measured),
            core::format(evaluation->step_time), 100 * (evaluation->step_time / run->measured - 1));
        out << sim::text_report(*evaluation, prepared->graph, prepared->cluster, prepared->plan, question)
            << '\n'
            << sim::text_of(why);
        return good;
    }
    diagnostics.error({}, "--explain",
                      fmt::format("--explain {}: {} has no such row", core::in_quotes(id), runs.file),
                      "give an id of the file's first column");
    return show(diagnostics, as_json, out, err);
}

}  // namespace

int run_validate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options given(
        arguments,
        {.with_value = {"--clusters", "--sweeps", "--worst", "--constant", "--explain", "--calibration"},
         .flags = {"--help", "--json"}},
        diagnostics);
    if (given.has("--help")) {
        out << help;
        return good;
    }
    const std::string file =
        given.only_positional("FILE.csv", "file of measurements", "see smsim validate --help");
    const std::optional<std::string> clusters_file = given.text("--clusters"),
                                     sweeps_file = given.text("--sweeps"),
                                     explained = given.text("--explain");
    if (!clusters_file) given.error("--clusters", "no file of clusters given", "--clusters clusters.csv");
    const std::size_t worst = given.integer("--worst", 0, 1 << 30).value_or(10);
    validation::ValidateOptions options;
    for (const std::string& assignment : given.list("--constant"))
        if (const std::string wrong = set_constant(assignment, options.constants); !wrong.empty())
            given.error("--constant", wrong, "docs/accuracy.md lists names and ranges");
    const std::optional<std::string> calibration_file = given.text("--calibration");
    if (calibration_file && given.has("--constant"))
        given.error("--constant", "--constant: --calibration brings the constants",
                    "leave out one of the two");
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    std::optional<sim::Posterior> calibration;
    if (calibration_file) calibration = sim::load_posterior(*calibration_file, diagnostics);
    options.calibration = calibration ? &*calibration : nullptr;
    if (calibration) options.constants = calibration->cost_constants();
    options.has_intervals = true;
    const auto runs = core::load_csv(file, validation::run_columns(), diagnostics);
    const auto clusters = core::load_csv(*clusters_file, validation::cluster_columns(), diagnostics);
    std::optional<core::CsvTable> sweeps;
    if (sweeps_file) sweeps = core::load_csv(*sweeps_file, {"sweep_id", "ids"}, diagnostics);
    if (diagnostics.has_errors() || !runs || !clusters) return show(diagnostics, as_json, out, err);

    if (explained) return explain_row(*explained, *runs, *clusters, options.constants, as_json, out, err);
    const bool on_terminal = isatty(STDERR_FILENO) != 0;
    if (on_terminal)
        options.progress = [&err](std::size_t done, std::size_t all) {
            if (done % 8 == 0 || done == all)
                err << fmt::format("\r  {} of {} rows{}", done, all, done == all ? "\r\033[K" : "")
                    << std::flush;
        };
    const auto validation =
        validation::validate(*runs, *clusters, sweeps ? &*sweeps : nullptr, diagnostics, options);
    if (const int code = show(diagnostics, as_json, out, err); code != good || !validation)
        return code == good ? internal_failure : code;
    if (as_json) out << core::to_json(validation::to_value(*validation)) << '\n';
    else print(*validation, worst, out);
    return good;
}

}  // namespace apps
