// What measurements leave open of the figures that predictions rest on: a mean and a covariance of the
// constants of the cost model and of the effects of an installation, how far off predictions are beyond them,
// and the kinds of runs that were ever measured. Stored as data: constants_posterior.toml, made by
// bench/posterior, is compiled in; `smsim calibrate` writes such a file for one installation.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "sim/cost/constants.h"
#include "sim/evaluate.h"
#include "sim/uncertainty/run_facts.h"

namespace sim {

// An installation (one cluster with its software) is slower or faster than the constants say, by factors
// whose logarithms are these: of everything (versions, tuning, what its script does beside training); of what
// devices compute (clocks, cooling, board power); of what the network between them carries (cabling, fabric
// load); of what waits for hosts (processors). Zero, with the deviation between installations, until runs of
// it are known.
enum class SiteEffect { everything, compute, network, host };
inline constexpr std::size_t site_effects = 4;
const std::array<const char*, site_effects>& site_effect_names();

// Symmetric.
class Covariance {
public:
    Covariance() = default;
    explicit Covariance(std::size_t size) : size_(size), values_(size * size, 0.0) {}
    std::size_t size() const { return size_; }
    double operator()(std::size_t row, std::size_t column) const { return values_[row * size_ + column]; }
    void set(std::size_t row, std::size_t column, double value) {
        values_[row * size_ + column] = values_[column * size_ + row] = value;
    }
    std::vector<double> times(const std::vector<double>& vector) const;

private:
    std::size_t size_ = 0;
    std::vector<double> values_;
};

// One kind of run that was measured, with the widest of it.
struct MeasuredKind {
    std::string device, precision, framework, family;
    int devices = 1;  // the most
};

// In what a run is unlike everything measured, each from 0 (something alike was measured) on.
enum class Novelty { device, precision, framework, family, scale };
inline constexpr std::size_t novelties = 5;
const std::array<const char*, novelties>& novelty_names();
std::array<double, novelties> novelty_of(const RunFacts& facts, const std::vector<MeasuredKind>& measured);
// Adds the kind of a run to those measured.
void remember(const RunFacts& facts, std::vector<MeasuredKind>& measured);

// Deviations of the logarithm of a figure about its prediction.
struct ErrorModel {
    double row = 0;  // of one run about its installation's runs
    std::array<double, novelties> novelty{};
    double factor_80 = 1.2816;  // deviations in half an 80 % interval, as left-out sources need it
};

// Parameters: the constants in the order of named_constants(), then the site effects.
struct Posterior {
    std::string origin;  // the file, or what it was made of
    std::string date, command;
    std::vector<double> mean;
    Covariance covariance;
    ErrorModel step, peak;
    std::vector<MeasuredKind> measured;

    std::size_t constants() const { return mean.size() - site_effects; }
    std::size_t index(SiteEffect effect) const;
    CostConstants cost_constants() const;  // the mean, inside the physical ranges
};

// What is assumed before any measurement: the constants as they are, independent, with their prior
// deviations; no site effects.
Posterior prior_posterior();
// Of this version of the product.
const Posterior& shipped_posterior();

// One measured figure: log(measured / predicted) at the mean, its response to the parameters, and the
// variance that is its own. Moves mean and covariance by Bayes' rule; an error beyond what both let expect
// counts less (Huber's weight at two deviations). Parameters marked in `held` keep their mean and deviation
// (Schmidt's consider filter): what they might be still counts.
void learn(Posterior& posterior, const std::vector<double>& response, double log_error, double variance,
           const std::vector<bool>& held = {});

// Shares of the step that each site effect scales, as a response; bubbles follow the others.
std::array<double, site_effects> site_response(const Breakdown& breakdown);
// Response of the step time to all parameters.
std::vector<double> whole_response(const std::vector<double>& constants, const Breakdown& breakdown);
// What runs of an installation taught about it, applied to an evaluation made with cost_constants(): step
// time, rates and breakdown are scaled alike; its timeline is left as simulated.
void apply_site_effects(Evaluation& evaluation, const Posterior& posterior);

// The file, see docs/formats.md. Constants that the file does not know keep their prior; those that this
// version does not have are left out.
std::optional<Posterior> read_posterior(const core::Value& document, const std::string& origin,
                                        core::Diagnostics& diagnostics);
std::optional<Posterior> load_posterior(const std::string& path, core::Diagnostics& diagnostics);
core::Value to_value(const Posterior& posterior);

}  // namespace sim
