#include "validation/posterior_fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/uncertainty/interval.h"
#include "validation/source.h"

namespace validation {

namespace {

using Rows = std::vector<const LinearisedRun*>;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// From the constants of the linearisation to the posterior's mean.
std::vector<double> moved(const sim::Posterior& posterior, const sim::CostConstants& linearised_at) {
    std::vector<double> change = posterior.mean;
    std::size_t c = 0;
    for (const sim::NamedConstant& constant : sim::named_constants())
        change[c++] -= linearised_at.*constant.value;
    return change;
}

void set_site_prior(sim::Posterior& posterior, const std::array<double, sim::site_effects>& deviations) {
    for (std::size_t e = 0; e < sim::site_effects; ++e) {
        const std::size_t here = posterior.constants() + e;
        posterior.mean[here] = 0;
        for (std::size_t other = 0; other < posterior.mean.size(); ++other)
            posterior.covariance.set(here, other, 0);
        posterior.covariance.set(here, here, deviations[e] * deviations[e]);
    }
}

std::array<double, sim::site_effects> site_deviations(const sim::Posterior& posterior) {
    std::array<double, sim::site_effects> deviations{};
    for (std::size_t e = 0; e < sim::site_effects; ++e)
        deviations[e] = std::sqrt(posterior.covariance(posterior.constants() + e, posterior.constants() + e));
    return deviations;
}

std::map<std::string, Rows> by(const Rows& rows, std::string (*key)(const LinearisedRun&)) {
    std::map<std::string, Rows> parts;
    for (const LinearisedRun* row : rows) parts[key(*row)].push_back(row);
    return parts;
}
std::string group_of(const LinearisedRun& run) { return run.group; }
std::string maker_of(const LinearisedRun& run) { return source_of(run.group); }

// One quantity of the rows that are predicted: step time or peak memory.
struct Target {
    sim::ErrorModel sim::Posterior::* error;
    bool is_step = false;

    bool has(const LinearisedRun& run) const { return is_step || run.log_peak_error.has_value(); }
    double log_error(const LinearisedRun& run) const {
        return is_step ? run.log_error : run.log_peak_error.value_or(0);
    }
    std::vector<double> response(const LinearisedRun& run) const {
        if (is_step) return sim::whole_response(run.responses.step, run.breakdown);
        std::vector<double> response = run.responses.peak;
        response.resize(response.size() + sim::site_effects, 0.0);
        return response;
    }
};

// A row of a left-out source as the others predict it.
struct LeftOut {
    const LinearisedRun* run = nullptr;
    std::string source;
    std::size_t of_source = 0;  // rows
    double error = 0;           // measured over predicted, logarithm
    double parameter_variance = 0;
    std::array<double, sim::novelties> novelty{};
};

struct Fold {
    std::string source;
    sim::Posterior posterior;  // of all others, site effects at their prior
    Rows left_out;
};

std::vector<Fold> make_folds(const Rows& rows, const sim::Posterior& prior, const sim::CostConstants& at) {
    std::vector<Fold> folds;
    for (const auto& [source, left_out] : by(rows, maker_of)) {
        Rows others;
        for (const LinearisedRun* row : rows)
            if (maker_of(*row) != source) others.push_back(row);
        folds.push_back({source, learn_groups(prior, others, at), left_out});
    }
    return folds;
}

std::vector<LeftOut> predict(const std::vector<Fold>& folds, const Target& target,
                             const sim::CostConstants& at) {
    std::vector<LeftOut> result;
    for (const Fold& fold : folds) {
        const std::vector<double> change = moved(fold.posterior, at);
        const auto rows = std::size_t(std::count_if(fold.left_out.begin(), fold.left_out.end(),
                                                    [&](const LinearisedRun* r) { return target.has(*r); }));
        for (const LinearisedRun* run : fold.left_out) {
            if (!target.has(*run)) continue;
            const std::vector<double> response = target.response(*run);
            result.push_back({run, fold.source, rows, target.log_error(*run) - dot(response, change),
                              std::max(0.0, dot(response, fold.posterior.covariance.times(response))),
                              sim::novelty_of(run->facts, fold.posterior.measured)});
        }
    }
    return result;
}

double own_variance(const sim::ErrorModel& error, const LeftOut& row) {
    double variance = error.row * error.row;
    for (std::size_t n = 0; n < sim::novelties; ++n)
        variance += std::pow(error.novelty[n] * row.novelty[n], 2);
    return variance;
}

// Logarithm of Student's density with four degrees of freedom: errors of published rows have long tails.
double log_density(double error, double variance) {
    constexpr double freedom = 4;
    const double scaled = variance * (freedom - 2) / freedom;  // so that `variance` is the variance
    return -0.5 * std::log(scaled) - 0.5 * (freedom + 1) * std::log1p(error * error / scaled / freedom);
}

// Sources count alike.
double left_out_density(const std::vector<LeftOut>& rows, const sim::ErrorModel& error) {
    double sum = 0;
    for (const LeftOut& row : rows)
        sum +=
            log_density(row.error, row.parameter_variance + own_variance(error, row)) / double(row.of_source);
    return sum;
}

// Rows of an installation after others of it: what tells the installation's part from the runs' own.
double sequential_density(const std::vector<Fold>& folds, const Target& target,
                          const sim::CostConstants& at) {
    double sum = 0;
    for (const Fold& fold : folds)
        for (const auto& [group, rows] : by(fold.left_out, group_of)) {
            sim::Posterior posterior = fold.posterior;
            for (const LinearisedRun* run : rows) {
                const std::vector<double> response = target.response(*run);
                const double error = target.log_error(*run) - dot(response, moved(posterior, at));
                const double own = std::pow(posterior.step.row, 2) + run->noise * run->noise;
                sum += log_density(error, dot(response, posterior.covariance.times(response)) + own) /
                       double(fold.left_out.size());
                sim::learn(posterior, response, error, own);
            }
        }
    return sum;
}

// Raises `objective` over positive parameters by scaling one at a time.
template <class Objective>
void climb(const std::vector<double*>& parameters, const std::vector<double>& steps, Objective objective) {
    double best = objective();
    for (const double step : steps)
        for (double* parameter : parameters) {
            const double before = *parameter;
            double chosen = before;
            for (const double tried : {before * step, before / step}) {
                *parameter = tried;
                if (const double value = objective(); value > best) {
                    best = value;
                    chosen = tried;
                }
            }
            *parameter = chosen;
        }
}

// Deviations in half an interval so that it holds a run with a chance of four fifths. Whose run it will be is
// not known; three answers count alike: of any source left out, of one of their rows (some published three,
// others 269), and of a known row.
double factor_80(const std::vector<LeftOut>& left_out, const std::vector<LeftOut>& known,
                 const sim::ErrorModel& error) {
    struct Deviation {
        double deviations = 0, weight = 0;
    };
    std::vector<Deviation> all;
    double sum = 0;
    const auto add = [&](const LeftOut& row, double weight) {
        all.push_back(
            {std::abs(row.error) / std::sqrt(row.parameter_variance + own_variance(error, row)), weight});
        sum += weight;
    };
    double sources = 0;
    for (const LeftOut& row : left_out) sources += 1 / double(row.of_source);
    for (const LeftOut& row : left_out)
        add(row, 1 / (sources * double(row.of_source)) + 1 / double(left_out.size()));
    for (const LeftOut& row : known) add(row, 1 / double(known.size()));
    std::ranges::sort(all, {}, &Deviation::deviations);
    double inside = 0;
    for (const Deviation& one : all)
        if ((inside += one.weight) >= 0.8 * sum) return one.deviations;
    return all.back().deviations;
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

std::vector<SourceCoverage> coverage(const std::vector<LeftOut>& rows, const sim::ErrorModel& error) {
    std::map<std::string, std::vector<const LeftOut*>> sources;
    for (const LeftOut& row : rows) sources[row.source].push_back(&row);
    std::vector<SourceCoverage> result;
    for (const auto& [source, members] : sources) {
        SourceCoverage one{source, int(members.size()), 0, 0, 0};
        std::vector<double> widths;
        for (const LeftOut* row : members) {
            widths.push_back(error.factor_80 *
                             std::sqrt(row->parameter_variance + own_variance(error, *row)));
            one.coverage += std::abs(row->error) <= widths.back() ? 1.0 / one.rows : 0.0;
            one.mape += std::abs(std::expm1(-row->error)) / one.rows;
        }
        one.median_half_width = median(widths);
        result.push_back(one);
    }
    return result;
}

void fit_error(const std::vector<LeftOut>& rows, sim::ErrorModel& error, bool with_row) {
    if (rows.empty()) return;
    std::vector<double*> parameters;
    if (with_row) parameters.push_back(&error.row);
    for (double& novelty : error.novelty) parameters.push_back(&novelty);
    climb(parameters, {4, 2, 2, 1.5, 1.5, 1.2, 1.2, 1.1}, [&] { return left_out_density(rows, error); });
}

// Rows as the shipped constants predict them, with what all rows say of these.
std::vector<LeftOut> as_shipped(const Rows& rows, const sim::Posterior& posterior, const Target& target) {
    const std::map<std::string, Rows> sources = by(rows, maker_of);
    std::vector<LeftOut> result;
    for (const auto& [source, members] : sources) {
        const auto count = std::size_t(
            std::ranges::count_if(members, [&](const LinearisedRun* run) { return target.has(*run); }));
        for (const LinearisedRun* run : members) {
            if (!target.has(*run)) continue;
            const std::vector<double> response = target.response(*run);
            result.push_back({run, source + " as shipped", count, target.log_error(*run),
                              std::max(0.0, dot(response, posterior.covariance.times(response))),
                              sim::novelty_of(run->facts, posterior.measured)});
        }
    }
    return result;
}

// One factor for sources that nobody knows and for those that the constants have seen.
std::vector<SourceCoverage> calibrate(const std::vector<LeftOut>& left_out, const std::vector<LeftOut>& known,
                                      sim::ErrorModel& error) {
    if (!left_out.empty()) error.factor_80 = factor_80(left_out, known, error);
    return coverage(left_out, error);
}

}  // namespace

void learn_installation(sim::Posterior& posterior, const Rows& runs, const sim::CostConstants& at,
                        const std::vector<bool>& held) {
    const auto learn = [&](const Target& target, const LinearisedRun& run) {
        const std::vector<double> response = target.response(run);
        const double row = (posterior.*target.error).row;
        sim::learn(posterior, response, target.log_error(run) - dot(response, moved(posterior, at)),
                   row * row + run.noise * run.noise, held);
    };
    for (const LinearisedRun* run : runs) {
        learn({&sim::Posterior::step, true}, *run);
        if (run->log_peak_error) learn({&sim::Posterior::peak, false}, *run);
    }
}

sim::Posterior learn_groups(const sim::Posterior& prior, const Rows& runs, const sim::CostConstants& at) {
    sim::Posterior posterior = prior;
    const std::array<double, sim::site_effects> deviations = site_deviations(prior);
    for (const auto& [group, rows] : by(runs, group_of)) {
        learn_installation(posterior, rows, at);
        set_site_prior(posterior, deviations);
        for (const LinearisedRun* run : rows) sim::remember(run->facts, posterior.measured);
    }
    return posterior;
}

PosteriorFit fit_posterior(const LinearisedRuns& runs, const sim::CostConstants& at) {
    Rows rows;
    for (const LinearisedRun& run : runs.runs) rows.push_back(&run);
    const Target step{&sim::Posterior::step, true}, peak{&sim::Posterior::peak, false};

    // Where the search begins: a few per cent each.
    sim::Posterior prior = sim::prior_posterior();
    std::array<double, sim::site_effects> site = {0.06, 0.04, 0.15, 0.15};
    prior.step.row = 0.06;
    prior.peak.row = 0.08;
    prior.step.novelty.fill(0.03);
    prior.peak.novelty.fill(0.03);

    // What installations and runs differ by, on some rows of each group: the search predicts often.
    constexpr std::size_t rows_per_group = 10;
    Rows sample;
    for (const auto& [group, members] : by(rows, group_of))
        for (std::size_t k = 0; k < std::min(rows_per_group, members.size()); ++k)
            sample.push_back(members[k * members.size() / std::min(rows_per_group, members.size())]);
    std::vector<double*> parameters = {&prior.step.row};
    for (double& deviation : site) parameters.push_back(&deviation);
    climb(parameters, {1.3, 1.5, 1.3, 1.15}, [&] {
        set_site_prior(prior, site);
        const std::vector<Fold> folds = make_folds(sample, prior, at);
        return left_out_density(predict(folds, step, at), prior.step) + sequential_density(folds, step, at);
    });
    set_site_prior(prior, site);

    PosteriorFit fit;
    const std::vector<Fold> folds = make_folds(rows, prior, at);
    const std::vector<LeftOut> steps = predict(folds, step, at), peaks = predict(folds, peak, at);
    fit_error(steps, prior.step, false);
    fit_error(peaks, prior.peak, true);
    fit.posterior = learn_groups(prior, rows, at);
    fit.step = calibrate(steps, as_shipped(rows, fit.posterior, step), fit.posterior.step);
    // Most readings of memory repeat one another, so those of known sources say little.
    fit.peak = calibrate(peaks, {}, fit.posterior.peak);
    return fit;
}

CoverageSummary summary(const std::vector<SourceCoverage>& sources) {
    CoverageSummary result;
    double rows = 0;
    std::vector<double> widths;
    for (const SourceCoverage& source : sources) {
        result.of_rows += source.coverage * source.rows;
        result.of_sources += source.coverage / double(sources.size());
        rows += source.rows;
        widths.insert(widths.end(), std::size_t(source.rows), source.median_half_width);
    }
    if (rows > 0) result.of_rows /= rows;
    result.median_half_width = median(widths);
    return result;
}

}  // namespace validation
