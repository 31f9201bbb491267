#include "sim/uncertainty/posterior.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "sim/report/breakdown.h"
#include "sim/uncertainty/responses.h"

namespace sim {

namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Doublings of the devices beyond the most that were measured with one of the facts in common.
double doublings_beyond(int devices, int most) {
    return devices > most ? std::log2(double(devices) / double(std::max(1, most))) : 0.0;
}

}  // namespace

const std::array<const char*, site_effects>& site_effect_names() {
    static const std::array<const char*, site_effects> names = {"site", "site_compute", "site_network",
                                                                "site_host"};
    return names;
}

const std::array<const char*, novelties>& novelty_names() {
    static const std::array<const char*, novelties> names = {"device", "precision", "framework", "family",
                                                             "scale"};
    return names;
}

std::vector<double> Covariance::times(const std::vector<double>& vector) const {
    std::vector<double> product(size_, 0.0);
    for (std::size_t row = 0; row < size_; ++row)
        for (std::size_t column = 0; column < size_; ++column)
            product[row] += values_[row * size_ + column] * vector[column];
    return product;
}

std::array<double, novelties> novelty_of(const RunFacts& facts, const std::vector<MeasuredKind>& measured) {
    bool has_device = false, has_precision = false, has_framework = false, has_family = false;
    int most_devices = 1;
    for (const MeasuredKind& kind : measured) {
        const bool is_device = kind.device == facts.device;
        has_device = has_device || is_device;
        // A precision is a device's own: its products are other instructions, of other libraries.
        has_precision = has_precision || (is_device && kind.precision == facts.precision);
        has_framework = has_framework || kind.framework == facts.framework;
        has_family = has_family || kind.family == facts.family;
        if (kind.framework == facts.framework || is_device)
            most_devices = std::max(most_devices, kind.devices);
    }
    std::array<double, novelties> novelty{};
    const auto set = [&](Novelty what, double value) { novelty[std::size_t(what)] = value; };
    set(Novelty::device, has_device ? 0 : 1);
    set(Novelty::precision, has_precision || !has_device ? 0 : 1);
    set(Novelty::framework, has_framework ? 0 : 1);
    set(Novelty::family, has_family ? 0 : 1);
    set(Novelty::scale, doublings_beyond(facts.devices, most_devices));
    return novelty;
}

void remember(const RunFacts& facts, std::vector<MeasuredKind>& measured) {
    for (MeasuredKind& kind : measured) {
        if (kind.device != facts.device || kind.precision != facts.precision ||
            kind.framework != facts.framework || kind.family != facts.family)
            continue;
        kind.devices = std::max(kind.devices, facts.devices);
        return;
    }
    measured.push_back({facts.device, facts.precision, facts.framework, facts.family, facts.devices});
}

std::size_t Posterior::index(SiteEffect effect) const { return constants() + std::size_t(effect); }

CostConstants Posterior::cost_constants() const {
    CostConstants result;
    std::size_t c = 0;
    for (const NamedConstant& constant : named_constants()) {
        result.*constant.value = std::clamp(mean[c], constant.least, constant.greatest);
        ++c;
    }
    return result;
}

Posterior prior_posterior() {
    const std::span<const NamedConstant> constants = named_constants();
    const std::size_t parameters = constants.size() + site_effects;
    Posterior posterior;
    posterior.origin = "priors";
    posterior.mean.assign(parameters, 0.0);
    posterior.covariance = Covariance(parameters);
    const CostConstants shipped;
    for (std::size_t c = 0; c < constants.size(); ++c) {
        posterior.mean[c] = shipped.*constants[c].value;
        const double deviation = prior_deviation(constants[c]);
        posterior.covariance.set(c, c, deviation * deviation);
    }
    return posterior;
}

void learn(Posterior& posterior, const std::vector<double>& response, double log_error, double variance,
           const std::vector<bool>& held) {
    const std::vector<double> with = posterior.covariance.times(response);
    double expected = dot(response, with) + variance;
    if (!(expected > 0)) return;
    constexpr double tolerated = 2;  // deviations
    const double deviations = std::abs(log_error) / std::sqrt(expected);
    if (deviations > tolerated) expected += variance * (deviations / tolerated - 1);
    std::vector<double> gain = with;
    for (std::size_t p = 0; p < gain.size(); ++p) gain[p] = !held.empty() && held[p] ? 0 : gain[p] / expected;
    for (std::size_t p = 0; p < gain.size(); ++p) posterior.mean[p] += gain[p] * log_error;
    // Joseph's form, right for any gain.
    for (std::size_t p = 0; p < gain.size(); ++p)
        for (std::size_t q = 0; q <= p; ++q)
            posterior.covariance.set(p, q,
                                     posterior.covariance(p, q) - gain[p] * with[q] - with[p] * gain[q] +
                                         gain[p] * gain[q] * expected);
}

std::array<double, site_effects> site_response(const Breakdown& b) {
    const core::Seconds compute = b.compute + b.recompute + b.optimizer;
    const core::Seconds network =
        b.tensor_parallel + b.pipeline + b.data_parallel + b.sharding + b.expert + b.offload;
    const core::Seconds live = compute + network + b.host;
    std::array<double, site_effects> response{};
    const auto set = [&](SiteEffect effect, double value) { response[std::size_t(effect)] = value; };
    set(SiteEffect::everything, 1);
    if (live.value <= 0) return response;
    set(SiteEffect::compute, compute / live);
    set(SiteEffect::network, network / live);
    set(SiteEffect::host, b.host / live);
    return response;
}

std::vector<double> whole_response(const std::vector<double>& constants, const Breakdown& breakdown) {
    std::vector<double> response = constants;
    for (double share : site_response(breakdown)) response.push_back(share);
    return response;
}

void apply_site_effects(Evaluation& evaluation, const Posterior& posterior) {
    const std::array<double, site_effects> response = site_response(evaluation.breakdown);
    double log_factor = 0;
    for (std::size_t e = 0; e < site_effects; ++e)
        log_factor += response[e] * posterior.mean[posterior.constants() + e];
    if (log_factor == 0) return;
    const double factor = std::exp(log_factor);
    evaluation.step_time *= factor;
    for (const BreakdownPart& part : breakdown_parts()) evaluation.breakdown.*part.part *= factor;
    evaluation.samples_per_second /= factor;
    evaluation.tokens_per_second /= factor;
    evaluation.model_flops_per_gpu /= factor;
    evaluation.hardware_flops_per_gpu /= factor;
    evaluation.mfu /= factor;
    evaluation.assumptions.push_back(fmt::format(
        "step time x {:.3f}: what runs of this installation taught ({})", factor, posterior.origin));
}

}  // namespace sim
