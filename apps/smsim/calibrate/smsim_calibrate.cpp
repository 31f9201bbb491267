#include "apps/smsim/calibrate/smsim_calibrate.h"

#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/calibrate/smsim_calibrate_network.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "validation/installation.h"
#include "validation/published_run.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim calibrate MEASUREMENTS.csv [--clusters clusters.csv] --out FILE.toml [--calibration FILE] "
    "[--json]\n"
    "       smsim calibrate --nccl-tests LOG.txt --instance NAME [--collective NAME] [--out CLUSTER.toml] "
    "[--json]\n"
    "\n"
    "Learns from a few runs of your own (three are enough to start) how your installation differs: moves the "
    "constants of the\n"
    "cost model as far as the runs speak against what is known of them, and finds how much faster or slower "
    "this cluster and\n"
    "its software are. smsim, smplan and smsim validate take the file with --calibration FILE.\n"
    "\n"
    "  --clusters FILE     hardware the rows ran on (default: clusters.csv beside MEASUREMENTS.csv)\n"
    "  --out FILE          the calibration, with what stays uncertain of it\n"
    "  --calibration FILE  start from this one: more runs of the same installation\n"
    "  --json              one JSON document on stdout\n"
    "\n"
    "MEASUREMENTS.csv has the columns that smsim validate reads (docs/formats.md). Rows that cannot be "
    "predicted are reported\n"
    "and left out; constants that no row answers to stay as they are.\n"
    "\n"
    "The second form takes what all_reduce_perf, all_gather_perf or reduce_scatter_perf of nccl-tests "
    "printed on "
    "two nodes or\n"
    "more, and finds the network's efficiency and latency that meet it, as a [cluster] table for scenarios "
    "and "
    "plans.\n"
    "\n"
    "  --instance NAME     the nodes' hardware profile\n"
    "  --collective NAME   all_reduce, all_gather or reduce_scatter, where the log does not say (before "
    "2.17)\n"
    "  --out FILE          the [cluster] table\n"
    "\n"
    "Example:\n"
    "  smsim calibrate my_runs.csv --clusters my_clusters.csv --out my_site.toml\n"
    "  smsim scenarios/llama2_7b_p4d.toml --calibration my_site.toml\n";

std::string today() {
    const std::chrono::year_month_day date{
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now())};
    return fmt::format("{:04}-{:02}-{:02}", int(date.year()), unsigned(date.month()), unsigned(date.day()));
}

void print(const validation::InstallationCalibration& calibration, std::ostream& out) {
    const std::vector<validation::ScoredRow>&before = calibration.before.rows,
          &after = calibration.after.rows;
    out << fmt::format("{} of {} rows used\n", calibration.used, before.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
        if (before[i].status != validation::PredictionStatus::ok) {
            out << fmt::format("  {:<14} {}: {}\n", before[i].id, validation::name_of(before[i].status),
                               before[i].reason);
            continue;
        }
        out << fmt::format("  {:<14} measured {:>9}, predicted {:>9} before and {:>9} now\n", before[i].id,
                           core::format(before[i].measured), core::format(before[i].predicted),
                           core::format(after[i].predicted));
    }
    constexpr double worth_a_line = 0.05;  // deviations
    out << "\nmoved, by how far they were known before\n";
    std::size_t rest = 0;
    for (const validation::MovedParameter& moved : calibration.moved) {
        const double deviations =
            moved.deviation_before > 0 ? (moved.to - moved.from) / moved.deviation_before : 0;
        if (std::abs(deviations) < worth_a_line) {
            ++rest;
            continue;
        }
        out << fmt::format(
            "  {:<24} {:>8.4g} -> {:>8.4g}  ({:+.1f} deviations; known to {:.2g}, now {:.2g})  {}\n",
            moved.name, moved.from, moved.to, deviations, moved.deviation_before, moved.deviation_after,
            moved.meaning);
    }
    if (rest > 0) out << fmt::format("  {} more by less than a twentieth of a deviation\n", rest);
}

}  // namespace

int run_calibrate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (calibrates_network(arguments)) return run_calibrate_network(arguments, out, err);
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options given(arguments,
                  {.with_value = {"--clusters", "--out", "--calibration"}, .flags = {"--help", "--json"}},
                  diagnostics);
    if (given.has("--help")) {
        out << help;
        return good;
    }
    const std::string file =
        given.only_positional("MEASUREMENTS.csv", "file of measurements", "see smsim calibrate --help");
    const std::optional<std::string> output = given.text("--out"), start_file = given.text("--calibration");
    if (!output) given.error("--out", "no file for the calibration given", "--out my_site.toml");
    else check_output("--out", *output, diagnostics);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const std::string clusters_file =
        given.text("--clusters")
            .value_or((std::filesystem::path(file).parent_path() / "clusters.csv").string());

    const auto runs = core::load_csv(file, validation::run_columns(), diagnostics);
    const auto clusters = core::load_csv(clusters_file, validation::cluster_columns(), diagnostics);
    std::optional<sim::Posterior> start;
    if (start_file) start = sim::load_posterior(*start_file, diagnostics);
    if (diagnostics.has_errors() || !runs || !clusters) return show(diagnostics, as_json, out, err);

    std::optional<validation::InstallationCalibration> calibration = validation::calibrate_installation(
        *runs, *clusters, start ? *start : sim::shipped_posterior(), diagnostics);
    if (const int code = show(diagnostics, as_json, out, err); code != good || !calibration)
        return code == good ? internal_failure : code;
    calibration->posterior.date = today();
    calibration->posterior.command = "smsim calibrate " + file;
    if (as_json) out << core::to_json(validation::to_value(*calibration)) << '\n';
    else print(*calibration, out);
    return write_outputs({{*output, core::to_toml(sim::to_value(calibration->posterior))}}, as_json, err);
}

}  // namespace apps
