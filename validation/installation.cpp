#include "validation/installation.h"

#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "validation/linearised_runs.h"
#include "validation/posterior_fit.h"

namespace validation {

namespace {

// Predictions bend with the constants: the fit is made again where the one before led.
constexpr int passes = 2;

// Runs of a kind that was never measured differ from the constants by more than installations usually do.
void widen_by_novelty(sim::Posterior& posterior, const std::vector<const LinearisedRun*>& runs) {
    double variance = 0;
    for (const LinearisedRun* run : runs) {
        const auto novelty = sim::novelty_of(run->facts, posterior.measured);
        for (std::size_t n = 0; n < sim::novelties; ++n)
            variance += std::pow(posterior.step.novelty[n] * novelty[n], 2) / double(runs.size());
    }
    const std::size_t site = posterior.index(sim::SiteEffect::everything);
    posterior.covariance.set(site, site, posterior.covariance(site, site) + variance);
}

std::vector<bool> without_response(const sim::Posterior& posterior,
                                   const std::vector<const LinearisedRun*>& runs) {
    std::vector<bool> held(posterior.mean.size(), false);
    for (std::size_t c = 0; c < posterior.constants(); ++c)
        held[c] = std::none_of(runs.begin(), runs.end(), [&](const LinearisedRun* run) {
            return run->responses.step[c] != 0 || (run->log_peak_error && run->responses.peak[c] != 0);
        });
    return held;
}

const char* const site_meanings[sim::site_effects] = {
    "logarithm of the installation's factor on every step", "... on what devices compute",
    "... on what the network carries", "... on what waits for hosts"};

std::vector<MovedParameter> moved_parameters(const sim::Posterior& before, const sim::Posterior& after) {
    std::vector<MovedParameter> moved;
    const auto add = [&](std::size_t p, const char* name, const char* meaning) {
        if (before.mean[p] == after.mean[p]) return;
        moved.push_back({name, meaning, before.mean[p], after.mean[p],
                         std::sqrt(std::max(0.0, before.covariance(p, p))),
                         std::sqrt(std::max(0.0, after.covariance(p, p)))});
    };
    std::size_t p = 0;
    for (const sim::NamedConstant& constant : sim::named_constants())
        add(p++, constant.name, constant.meaning);
    for (std::size_t e = 0; e < sim::site_effects; ++e)
        add(p++, sim::site_effect_names()[e], site_meanings[e]);
    const auto distance = [](const MovedParameter& m) {
        return m.deviation_before > 0 ? std::abs(m.to - m.from) / m.deviation_before : 0.0;
    };
    std::stable_sort(moved.begin(), moved.end(), [&](const MovedParameter& a, const MovedParameter& b) {
        return distance(a) > distance(b);
    });
    return moved;
}

}  // namespace

std::pair<sim::Posterior, int> learn_runs(const core::CsvTable& runs, const core::CsvTable& clusters,
                                          const sim::Posterior& start, const InstallationOptions& options) {
    sim::Posterior posterior = start;
    int used = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const sim::CostConstants here = posterior.cost_constants();
        const LinearisedRuns linearised =
            linearise(runs, clusters, {.constants = here, .threads = options.threads, .progress = {}});
        std::vector<const LinearisedRun*> rows;
        for (const LinearisedRun& run : linearised.runs) rows.push_back(&run);
        used = int(rows.size());
        if (used == 0) return {start, 0};
        posterior = start;
        widen_by_novelty(posterior, rows);
        learn_installation(posterior, rows, here, without_response(posterior, rows));
        const sim::CostConstants physical = posterior.cost_constants();
        std::size_t c = 0;
        for (const sim::NamedConstant& constant : sim::named_constants())
            posterior.mean[c++] = physical.*constant.value;
        for (const LinearisedRun* run : rows) sim::remember(run->facts, posterior.measured);
    }
    return {std::move(posterior), used};
}

std::optional<InstallationCalibration> calibrate_installation(const core::CsvTable& runs,
                                                              const core::CsvTable& clusters,
                                                              const sim::Posterior& start,
                                                              core::Diagnostics& diagnostics,
                                                              const InstallationOptions& options) {
    const auto score = [&](const sim::Posterior& posterior) {
        ValidateOptions validate_options;
        validate_options.calibration = &posterior;
        validate_options.has_intervals = true;
        validate_options.threads = options.threads;
        return validate(runs, clusters, nullptr, diagnostics, validate_options);
    };
    std::optional<Validation> before = score(start);
    if (!before) return std::nullopt;
    auto [posterior, used] = learn_runs(runs, clusters, start, options);
    if (used == 0) {
        std::string reasons;
        for (const ScoredRow& row : before->rows) reasons += "\n  " + row.id + ": " + row.reason;
        diagnostics.error({runs.file, 1, 1}, "", "no row of this file can be predicted" + reasons,
                          "three good rows are enough; smsim validate --help says what a row holds");
        return std::nullopt;
    }
    std::optional<Validation> after = score(posterior);
    if (!after) return std::nullopt;
    InstallationCalibration result;
    result.moved = moved_parameters(start, posterior);
    result.posterior = std::move(posterior);
    result.before = std::move(*before);
    result.after = std::move(*after);
    result.used = used;
    return result;
}

core::Value to_value(const InstallationCalibration& calibration) {
    core::Value document = core::Value::table();
    core::Value rows = core::Value::array();
    for (std::size_t i = 0; i < calibration.before.rows.size(); ++i) {
        const ScoredRow &before = calibration.before.rows[i], &after = calibration.after.rows[i];
        const bool is_good = before.status == PredictionStatus::ok;
        core::Value row = core::Value::table();
        row["id"] = before.id;
        row["status"] = std::string(name_of(before.status));
        row["reason"] = before.reason;
        row["measured_step_s"] = before.measured.value;
        row["predicted_before_s"] = is_good ? core::Value(before.predicted.value) : core::Value();
        row["predicted_after_s"] = is_good ? core::Value(after.predicted.value) : core::Value();
        row["predicted_after_s_80"] = after.predicted_80
                                          ? core::Value(std::vector<double>{after.predicted_80->first.value,
                                                                            after.predicted_80->second.value})
                                          : core::Value();
        rows.append(std::move(row));
    }
    document["rows"] = std::move(rows);
    document["rows_used"] = calibration.used;
    core::Value moved = core::Value::array();
    for (const MovedParameter& parameter : calibration.moved) {
        core::Value one = core::Value::table();
        one["name"] = parameter.name;
        one["meaning"] = parameter.meaning;
        one["from"] = parameter.from;
        one["to"] = parameter.to;
        one["deviation_before"] = parameter.deviation_before;
        one["deviation_after"] = parameter.deviation_after;
        moved.append(std::move(one));
    }
    document["moved"] = std::move(moved);
    return document;
}

}  // namespace validation
