// How well are the constants known, and how far off are predictions of measurements that took no part?
//
//   bench_posterior RUNS.csv... CLUSTERS.csv [--rows-per-group N] [--threads N] [--date D] [--out FILE.toml]
//                   [--few-shot DRAWS] [--linearised FILE.csv]
//
// Fits the posterior of the constants and the error model with whole sources left out
// (validation/posterior_fit.h), prints how many rows the 80 % intervals of left-out sources hold, and writes
// sim/uncertainty/constants_posterior.toml, which is compiled in. bench/posterior does all of it. With
// --few-shot: of every group DRAWS times three random rows are given to the fit that `smsim calibrate` makes,
// from the posterior of all other sources, and the rest of the group is predicted. --linearised: the
// responses of the rows are read from this file where it is there, else written to it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "validation/installation.h"
#include "validation/linearised_runs.h"
#include "validation/posterior_fit.h"
#include "validation/published_run.h"
#include "validation/source.h"
#include "validation/validate.h"

namespace {

struct Request {
    std::vector<std::string> files;
    std::string out, date = "undated", linearised;
    std::size_t rows_per_group = 1'000'000;
    int threads = 0, draws = 0;
};

Request read_arguments(int argc, char** argv) {
    Request request;
    for (int i = 1; i < argc; ++i) {
        const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0 && i + 1 < argc; };
        if (is("--rows-per-group")) request.rows_per_group = std::size_t(std::max(1, std::atoi(argv[++i])));
        else if (is("--threads")) request.threads = std::atoi(argv[++i]);
        else if (is("--few-shot")) request.draws = std::atoi(argv[++i]);
        else if (is("--date")) request.date = argv[++i];
        else if (is("--linearised")) request.linearised = argv[++i];
        else if (is("--out")) request.out = argv[++i];
        else request.files.emplace_back(argv[i]);
    }
    return request;
}

std::map<std::string, std::vector<std::size_t>> groups_of(const core::CsvTable& runs) {
    std::map<std::string, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < runs.rows.size(); ++i)
        groups[std::string(runs.cell(runs.rows[i], "group"))].push_back(i);
    return groups;
}

core::CsvTable with_rows(const core::CsvTable& table, const std::vector<std::size_t>& rows) {
    core::CsvTable result{table.file, table.header, {}};
    for (std::size_t i : rows) result.rows.push_back(table.rows[i]);
    return result;
}

core::CsvTable sample(const core::CsvTable& runs, std::size_t rows_per_group) {
    std::vector<std::size_t> chosen;
    for (const auto& [group, rows] : groups_of(runs)) {
        const std::size_t count = std::min(rows_per_group, rows.size());
        for (std::size_t k = 0; k < count; ++k) chosen.push_back(rows[k * rows.size() / count]);
    }
    return with_rows(runs, chosen);
}

validation::LinearisedRuns linearise_rows(const core::CsvTable& runs, const core::CsvTable& clusters,
                                          int threads) {
    return validation::linearise(
        runs, clusters,
        {.constants = {}, .threads = threads, .progress = [](std::size_t done, std::size_t all) {
             if (done % 50 == 0 || done == all)
                 fmt::print(stderr, "\r  row {} of {}{}", done, all, done == all ? "\n" : "");
         }});
}

void print(const char* what, const std::vector<validation::SourceCoverage>& sources) {
    fmt::print(
        "\n| {}: left out | rows | MAPE % | inside 80 % interval | median half width % |\n"
        "|---|--:|--:|--:|--:|\n",
        what);
    for (const validation::SourceCoverage& source : sources)
        fmt::print("| {} | {} | {:.1f} | {:.0f} % | {:.1f} |\n", source.source, source.rows,
                   100 * source.mape, 100 * source.coverage, 100 * source.median_half_width);
    const validation::CoverageSummary all = validation::summary(sources);
    fmt::print("| **all** | | | **{:.1f} %** of the rows, **{:.1f} %** with sources alike | {:.1f} |\n",
               100 * all.of_rows, 100 * all.of_sources, 100 * all.median_half_width);
}

// What all other sources say, with the deviations that were fitted.
sim::Posterior without_source(const std::string& source, const validation::LinearisedRuns& linearised,
                              const sim::Posterior& fitted) {
    sim::Posterior prior = sim::prior_posterior();
    prior.step = fitted.step;
    prior.peak = fitted.peak;
    for (std::size_t p = prior.constants(); p < prior.mean.size(); ++p)
        prior.covariance.set(p, p, fitted.covariance(p, p));
    std::vector<const validation::LinearisedRun*> others;
    for (const validation::LinearisedRun& run : linearised.runs)
        if (validation::source_of(run.group) != source) others.push_back(&run);
    sim::Posterior posterior = validation::learn_groups(prior, others, {});
    const sim::CostConstants physical = posterior.cost_constants();
    std::size_t c = 0;
    for (const sim::NamedConstant& constant : sim::named_constants())
        posterior.mean[c++] = physical.*constant.value;
    return posterior;
}

// Three rows of each group, the rest predicted: what a user's own runs are worth.
void few_shot(const core::CsvTable& runs, const core::CsvTable& clusters,
              const validation::LinearisedRuns& linearised, const sim::Posterior& fitted, int draws,
              int threads) {
    fmt::print(
        "\n| group | rows | as shipped, source left out % | after three runs % | inside 80 % "
        "interval |\n|---|--:|--:|--:|--:|\n");
    double before_sum = 0, after_sum = 0, inside_sum = 0;
    int groups = 0;
    for (const auto& [group, rows] : groups_of(runs)) {
        if (rows.size() < 4) continue;
        const sim::Posterior start = without_source(validation::source_of(group), linearised, fitted);
        double before = 0, after = 0, inside = 0;
        core::Random random(20261122);
        for (int draw = 0; draw < draws; ++draw) {
            std::vector<std::size_t> order = rows;
            for (std::size_t k = 0; k < 3; ++k)
                std::swap(order[k], order[k + random.below(order.size() - k)]);
            const core::CsvTable given = with_rows(runs, {order.begin(), order.begin() + 3});
            // Of long groups some: neighbouring rows repeat each other.
            constexpr std::size_t most_predicted = 24;
            for (std::size_t k = 3; k < order.size(); ++k)
                std::swap(order[k], order[k + random.below(order.size() - k)]);
            const auto end = order.begin() + std::ptrdiff_t(std::min(order.size(), 3 + most_predicted));
            const core::CsvTable rest = with_rows(runs, {order.begin() + 3, end});
            const auto [posterior, used] =
                validation::learn_runs(given, clusters, start, {.threads = threads});
            const auto score = [&](const sim::Posterior& by) {
                core::Diagnostics diagnostics;
                validation::ValidateOptions options;
                options.calibration = &by;
                options.has_intervals = true;
                options.threads = threads;
                return validation::validate(rest, clusters, nullptr, diagnostics, options).value();
            };
            const validation::Validation scored = score(posterior);
            if (draw == 0) before = score(start).macro_mape;
            after += scored.macro_mape / draws;
            inside += scored.coverage_80.value_or(0) / draws;
        }
        fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.0f} % |\n", group, rows.size(), 100 * before,
                   100 * after, 100 * inside);
        std::fflush(stdout);
        before_sum += before;
        after_sum += after;
        inside_sum += inside;
        ++groups;
    }
    fmt::print("| **macro** | | **{:.1f}** | **{:.1f}** | **{:.0f} %** |\n", 100 * before_sum / groups,
               100 * after_sum / groups, 100 * inside_sum / groups);
}

}  // namespace

int main(int argc, char** argv) {
    const Request request = read_arguments(argc, argv);
    if (request.files.size() < 2) {
        fmt::print(
            "the posterior needs measurements: bench_posterior RUNS.csv... CLUSTERS.csv "
            "[--rows-per-group N] [--threads N] [--date D] [--out FILE.toml] [--few-shot DRAWS] "
            "[--linearised FILE.csv]\n");
        return 0;  // `./run bench` starts every program without arguments
    }
    core::Diagnostics diagnostics;
    core::CsvTable runs;
    for (std::size_t f = 0; f + 1 < request.files.size(); ++f) {
        const auto table = core::load_csv(request.files[f], validation::run_columns(), diagnostics);
        if (!table) break;
        if (f > 0 && table->header != runs.header)
            diagnostics.error({}, "", request.files[f] + " has other columns than " + runs.file, "");
        if (f == 0) runs = *table;
        else runs.rows.insert(runs.rows.end(), table->rows.begin(), table->rows.end());
    }
    const auto clusters = core::load_csv(request.files.back(), validation::cluster_columns(), diagnostics);
    if (diagnostics.has_errors() || !clusters) {
        for (const core::Diagnostic& entry : diagnostics.entries()) fmt::print(stderr, "{}\n", entry.message);
        return 2;
    }
    const bool is_there = !request.linearised.empty() && std::filesystem::exists(request.linearised);
    validation::LinearisedRuns linearised;
    if (is_there) {
        if (const auto table = core::load_csv(request.linearised, {"id", "err"}, diagnostics))
            linearised = validation::read_linearised(*table, runs, diagnostics);
        for (const core::Diagnostic& entry : diagnostics.entries()) fmt::print(stderr, "{}\n", entry.message);
        if (diagnostics.has_errors()) return 2;
    } else {
        linearised = linearise_rows(sample(runs, request.rows_per_group), *clusters, request.threads);
    }
    if (!is_there && !request.linearised.empty())
        core::write_file_atomically(request.linearised, validation::to_csv(linearised));
    const validation::PosteriorFit fit = validation::fit_posterior(linearised, {});
    print("step time", fit.step);
    print("peak memory", fit.peak);
    if (!request.out.empty()) {
        sim::Posterior posterior = fit.posterior;
        posterior.mean = sim::prior_posterior().mean;  // predictions are made with the constants of the code
        posterior.date = request.date;
        posterior.command = "bench/posterior";
        for (std::size_t f = 0; f < request.files.size(); ++f)
            posterior.command += " " + request.files[f].substr(request.files[f].find_last_of('/') + 1);
        core::write_file_atomically(request.out, core::to_toml(sim::to_value(posterior)));
    }
    if (request.draws > 0)
        few_shot(runs, *clusters, linearised, fit.posterior, request.draws, request.threads);
    return 0;
}
