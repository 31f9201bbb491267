// Fits what measurements leave open: the posterior of the constants, how much installations and single runs
// differ beyond them, and how wide an interval must be so that it holds four fifths of the rows of sources
// that took no part.
#pragma once

#include <string>
#include <vector>

#include "sim/uncertainty/posterior.h"
#include "validation/linearised_runs.h"

namespace validation {

// Rows of one installation move the posterior: every run's error and response, about the constants at which
// it was linearised. The site effects that `posterior` comes with are those of this installation; parameters
// marked in `held` stay as they are.
void learn_installation(sim::Posterior& posterior, const std::vector<const LinearisedRun*>& runs,
                        const sim::CostConstants& linearised_at, const std::vector<bool>& held = {});

// Posterior over runs of many installations (one a group): site effects are learned for each and forgotten,
// with their prior deviations restored.
sim::Posterior learn_groups(const sim::Posterior& prior, const std::vector<const LinearisedRun*>& runs,
                            const sim::CostConstants& linearised_at);

struct SourceCoverage {
    std::string source;
    int rows = 0;
    double coverage = 0, median_half_width = 0;  // fractions
    double mape = 0;                             // of the linear refit
};

struct PosteriorFit {
    sim::Posterior posterior;                // of all rows
    std::vector<SourceCoverage> step, peak;  // each source predicted by the others
};

// Error model and posterior by leaving out whole sources (source.h).
PosteriorFit fit_posterior(const LinearisedRuns& runs, const sim::CostConstants& linearised_at);

// Coverage of the rows, of the sources alike, and the median half width over the rows.
struct CoverageSummary {
    double of_rows = 0, of_sources = 0, median_half_width = 0;
};
CoverageSummary summary(const std::vector<SourceCoverage>& sources);

}  // namespace validation
