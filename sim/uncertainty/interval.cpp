#include "sim/uncertainty/interval.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "schedule/plan/planned_graph.h"

namespace sim {

namespace {

// Predictions with all constants moved at once, by which the variance they cause is estimated (Hutchinson,
// 1990): unbiased, and within a few per cent of the whole interval, of which constants are the smaller part.
constexpr int probes = 4;
constexpr double probe_step = 0.5;  // of a deviation
constexpr int simulated_rounds =
    8;  // over the pipeline, at most; what is longer is extrapolated where that is exact

using Lower = std::vector<std::vector<double>>;

// Cholesky's factor of the constants' block; what rounding made negative counts as zero.
Lower factor_of(const Posterior& posterior) {
    const std::size_t size = posterior.constants();
    Lower factor(size, std::vector<double>(size, 0.0));
    for (std::size_t i = 0; i < size; ++i)
        for (std::size_t j = 0; j <= i; ++j) {
            double left = posterior.covariance(i, j);
            for (std::size_t k = 0; k < j; ++k) left -= factor[i][k] * factor[j][k];
            constexpr double rounding = 1e-9;  // of the variance
            if (i == j) factor[i][i] = left > rounding * posterior.covariance(i, i) ? std::sqrt(left) : 0.0;
            else factor[i][j] = factor[j][j] > 0 ? left / factor[j][j] : 0.0;
        }
    return factor;
}

class Probe {
public:
    Probe(const Evaluation& evaluation, const model::ModelGraph& graph, const cluster::Cluster& cluster,
          const schedule::Plan& plan, const Posterior& posterior)
        : graph_(plan, graph), cluster_(cluster), plan_(plan), posterior_(posterior) {
        // The same extrapolation on both sides of a difference.
        lowered_.takes_a_line = true;
        if (const std::optional<LogFigures> here = predict(posterior.cost_constants())) base_ = *here;
        else base_ = {std::log(evaluation.step_time.value), 0};
    }

    // Change of the logarithms along a direction of the constants, for one length of it.
    LogFigures along(const std::vector<double>& direction) const {
        CostConstants changed;
        const CostConstants here = posterior_.cost_constants();
        const std::span<const NamedConstant> constants = named_constants();
        for (std::size_t c = 0; c < constants.size(); ++c)
            changed.*constants[c].value = std::clamp(here.*constants[c].value + probe_step * direction[c],
                                                     constants[c].least, constants[c].greatest);
        const std::optional<LogFigures> there = predict(changed);
        if (!there) return {};
        return {(there->step - base_.step) / probe_step, (there->peak - base_.peak) / probe_step};
    }

private:
    std::optional<LogFigures> predict(const CostConstants& constants) const {
        return predict_logarithms(*graph_, cluster_, plan_, constants,
                                  simulated_rounds * plan_.layout.pipeline, {}, &lowered_);
    }

    const schedule::PlannedGraph graph_;
    const cluster::Cluster& cluster_;
    const schedule::Plan& plan_;
    const Posterior& posterior_;
    LogFigures base_;
    mutable LoweredPrograms lowered_;
};

double novelty_variance(const ErrorModel& error, const std::array<double, novelties>& novelty) {
    double variance = 0;
    for (std::size_t n = 0; n < novelties; ++n)
        variance += error.novelty[n] * error.novelty[n] * novelty[n] * novelty[n];
    return variance;
}

double own_variance(const ErrorModel& error, const RunFacts& facts, const Posterior& posterior) {
    return error.row * error.row + novelty_variance(error, novelty_of(facts, posterior.measured));
}

double product(const std::vector<double>& response, const Covariance& covariance) {
    const std::vector<double> with = covariance.times(response);
    double sum = 0;
    for (std::size_t i = 0; i < response.size(); ++i) sum += with[i] * response[i];
    return std::max(0.0, sum);
}

// Variances of the logarithms that parameters cause, from a few predictions.
LogFigures probed_variance(const Probe& probe, const Posterior& posterior, PredictionIntervals& intervals) {
    const std::size_t size = posterior.constants();
    const std::vector<double>& site = intervals.response;
    const std::vector<double> with_site = posterior.covariance.times(site);
    LogFigures variance{product(site, posterior.covariance), 0};
    // Where runs of the installation tied its effects to constants.
    if (std::any_of(with_site.begin(), with_site.begin() + std::ptrdiff_t(size),
                    [](double value) { return value != 0; }))
        variance.step += 2 * probe.along(with_site).step;
    const Lower factor = factor_of(posterior);
    for (int p = 0; p < probes; ++p) {
        std::vector<double> direction(size, 0.0);
        for (std::size_t column = 0; column < size; ++column) {
            // Rows of a Hadamard matrix: products of two columns cancel over the probes, but for every
            // fourth.
            const bool is_negative = std::popcount(std::size_t(p) & column) % 2 == 1;
            for (std::size_t row = column; row < size; ++row)
                direction[row] += is_negative ? -factor[row][column] : factor[row][column];
        }
        const LogFigures change = probe.along(direction);
        variance.step += change.step * change.step / probes;
        variance.peak += change.peak * change.peak / probes;
        intervals.moved.push_back(change.step);
    }
    variance.step = std::max(0.0, variance.step);
    return variance;
}

template <class T>
Interval<T> around(T centre, double half_width) {
    return {centre * std::exp(-half_width), centre * std::exp(half_width)};
}

// What three runs such as this one would leave of the parameters' variance.
double variance_after_three(const std::vector<double>& response, Posterior posterior) {
    constexpr int runs = 3;
    for (int run = 0; run < runs; ++run)
        learn(posterior, response, 0, posterior.step.row * posterior.step.row);
    return product(response, posterior.covariance);
}

void add_novelty_words(const RunFacts& facts, const Posterior& posterior, PredictionIntervals& intervals) {
    const std::array<double, novelties> novelty = novelty_of(facts, posterior.measured);
    const auto is_new = [&](Novelty what) { return novelty[std::size_t(what)] > 0; };
    if (is_new(Novelty::device)) intervals.unlike.push_back("device " + facts.device);
    if (is_new(Novelty::precision)) intervals.unlike.push_back(facts.precision + " on " + facts.device);
    if (is_new(Novelty::framework)) intervals.unlike.push_back("framework " + facts.framework);
    if (is_new(Novelty::family)) intervals.unlike.push_back("model family " + facts.family);
    if (is_new(Novelty::scale)) intervals.unlike.push_back(fmt::format("{} devices", facts.devices));
}

void explain(const std::vector<double>& response, const RunFacts& facts, const Posterior& posterior,
             const Evaluation& evaluation, PredictionIntervals& intervals) {
    const double novelty = novelty_variance(posterior.step, novelty_of(facts, posterior.measured));
    const double row = posterior.step.row * posterior.step.row;
    const double parameters = product(response, posterior.covariance);
    const double all = parameters + novelty + row;
    if (all <= 0) return;
    const std::vector<double> with = posterior.covariance.times(response);
    std::size_t c = 0;
    for (const NamedConstant& constant : named_constants()) {
        const double variance = posterior.covariance(c, c);
        if (variance > 0 && response[c] != 0)
            intervals.shares.push_back(
                {constant.name, constant.meaning, with[c] * with[c] / variance / all, true});
        ++c;
    }
    std::vector<double> site = response;
    std::fill_n(site.begin(), posterior.constants(), 0.0);
    intervals.shares.push_back({"installation", "how this cluster and its software differ from others",
                                product(site, posterior.covariance) / all, false});
    if (novelty > 0)
        intervals.shares.push_back(
            {"novelty", "runs of this kind were never measured", novelty / all, false});
    intervals.shares.push_back(
        {"run", "what tells one run from the next on the same machines", row / all, false});
    std::stable_sort(intervals.shares.begin(), intervals.shares.end(),
                     [](const VarianceShare& a, const VarianceShare& b) { return a.share > b.share; });
    // The novelty of a kind of run ends with the first of it; what it hid is the installation's effect.
    Posterior fresh = posterior;
    const std::size_t site_index = fresh.index(SiteEffect::everything);
    fresh.covariance.set(site_index, site_index, fresh.covariance(site_index, site_index) + novelty);
    const double after = variance_after_three(response, fresh) + row;
    intervals.after_three_runs = around(evaluation.step_time, posterior.step.factor_80 * std::sqrt(after));
    add_novelty_words(facts, posterior, intervals);
}

}  // namespace

double step_deviation(const std::vector<double>& response, const RunFacts& facts,
                      const Posterior& posterior) {
    return std::sqrt(product(response, posterior.covariance) +
                     own_variance(posterior.step, facts, posterior));
}

PredictionIntervals intervals_of(const Evaluation& evaluation, const model::ModelGraph& graph,
                                 const cluster::Cluster& cluster, const schedule::Plan& plan,
                                 const Posterior& posterior, const IntervalOptions& options) {
    PredictionIntervals intervals;
    intervals.response =
        whole_response(std::vector<double>(posterior.constants(), 0.0), evaluation.breakdown);
    const RunFacts facts = facts_of(graph, cluster, plan);
    LogFigures variance;
    const std::optional<ConstantResponses> responses =
        options.explains
            ? constant_responses(graph, cluster, plan, {.constants = posterior.cost_constants(), .peak = {}})
            : std::nullopt;
    if (responses) {
        const std::vector<double> response = whole_response(responses->step, evaluation.breakdown);
        std::vector<double> peak = responses->peak;
        peak.resize(response.size(), 0.0);
        variance = {product(response, posterior.covariance), product(peak, posterior.covariance)};
        explain(response, facts, posterior, evaluation, intervals);
    } else {
        variance = probed_variance(Probe(evaluation, graph, cluster, plan, posterior), posterior, intervals);
    }
    variance.step += own_variance(posterior.step, facts, posterior);
    variance.peak += own_variance(posterior.peak, facts, posterior);
    intervals.half_width = posterior.step.factor_80 * std::sqrt(variance.step);
    intervals.step = around(evaluation.step_time, intervals.half_width);
    intervals.peak = around(evaluation.peak_memory, posterior.peak.factor_80 * std::sqrt(variance.peak));
    return intervals;
}

double difference_deviation(const PredictionIntervals& one, const PredictionIntervals& other,
                            const Posterior& posterior) {
    double variance = 2 * posterior.step.row * posterior.step.row;
    const std::size_t moves = std::min(one.moved.size(), other.moved.size());
    for (std::size_t m = 0; m < moves; ++m) {
        const double change = one.moved[m] - other.moved[m];
        variance += change * change / double(moves);
    }
    std::vector<double> response = one.response;
    for (std::size_t i = 0; i < std::min(response.size(), other.response.size()); ++i)
        response[i] -= other.response[i];
    return std::sqrt(variance + product(response, posterior.covariance));
}

double chance_of_exceeding(core::Bytes available, core::Bytes peak, const PredictionIntervals& intervals) {
    constexpr double tenth = 1.2815515655446004;  // deviations beyond which a normal law has a tenth
    const double centre = std::sqrt(intervals.peak.low.value * intervals.peak.high.value);
    if (!(peak.value > 0) || !(available.value > 0) || !(centre > 0)) return 0;
    const double deviation = std::log(intervals.peak.high.value / centre) / tenth;
    const double distance = std::log(available / peak);
    if (deviation <= 0) return distance < 0 ? 1 : 0;
    return 0.5 * std::erfc(distance / deviation / std::sqrt(2.0));
}

void add_to(core::Value& document, const PredictionIntervals& intervals, const Evaluation& evaluation) {
    document["step_time_s_80"] = std::vector<double>{intervals.step.low.value, intervals.step.high.value};
    document["peak_memory_gib_80"] =
        std::vector<double>{core::to_gibibytes(intervals.peak.low), core::to_gibibytes(intervals.peak.high)};
    // Time costs money at a fixed rate.
    const double cost =
        evaluation.samples_per_second > 0 ? evaluation.rate.value * 1e6 / evaluation.samples_per_second : 0.0;
    document["usd_per_million_samples_80"] =
        std::vector<double>{cost * (intervals.step.low / evaluation.step_time),
                            cost * (intervals.step.high / evaluation.step_time)};
    if (!intervals.after_three_runs) return;
    core::Value uncertainty = core::Value::table();
    core::Value shares = core::Value::array();
    for (const VarianceShare& share : intervals.shares) {
        core::Value one = core::Value::table();
        one["name"] = share.name;
        one["meaning"] = share.meaning;
        one["variance_share"] = share.share;
        shares.append(std::move(one));
    }
    uncertainty["shares"] = std::move(shares);
    uncertainty["step_time_s_80_after_three_runs"] =
        std::vector<double>{intervals.after_three_runs->low.value, intervals.after_three_runs->high.value};
    uncertainty["unlike_everything_measured"] = intervals.unlike;
    document["uncertainty"] = std::move(uncertainty);
}

std::string text_of(const PredictionIntervals& intervals) {
    const auto per_cent = [](double share) { return fmt::format("{:.0f} % of the variance", 100 * share); };
    std::string text =
        fmt::format("Uncertainty: four of five steps within {} to {}, peak memory within {} to {}\n",
                    core::format(intervals.step.low), core::format(intervals.step.high),
                    core::format(intervals.peak.low), core::format(intervals.peak.high));
    if (!intervals.unlike.empty()) {
        text += "  unlike every run that was measured:";
        for (const std::string& what : intervals.unlike)
            text += (&what == &intervals.unlike.front() ? " " : ", ") + what;
        text += "\n";
    }
    if (intervals.shares.empty() || !intervals.after_three_runs) return text;
    const VarianceShare& widest = intervals.shares.front();
    text += fmt::format("  widened most by the {}: {} ({})\n", widest.name, widest.meaning,
                        per_cent(widest.share));
    const auto missing = std::find_if(intervals.shares.begin(), intervals.shares.end(),
                                      [](const VarianceShare& share) { return share.is_constant; });
    // Half the width is a quarter of the variance.
    constexpr double halves = 0.75;
    if (missing != intervals.shares.end())
        text += missing->share >= halves
                    ? fmt::format("  measure {} to halve this: {} ({})\n", missing->name, missing->meaning,
                                  per_cent(missing->share))
                    : fmt::format("  of the constants most by {}: {} ({})\n", missing->name, missing->meaning,
                                  per_cent(missing->share));
    const double after = std::log(intervals.after_three_runs->high / intervals.after_three_runs->low) / 2;
    text += fmt::format("  three runs of this installation for smsim calibrate would {} {} to {}\n",
                        after <= 0.5 * intervals.half_width ? "halve this:" : "narrow this to",
                        core::format(intervals.after_three_runs->low),
                        core::format(intervals.after_three_runs->high));
    return text;
}

}  // namespace sim
