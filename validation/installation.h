// A user's own few runs move what predictions rest on: constants and site effects of one installation, with
// what stays open of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "sim/uncertainty/posterior.h"
#include "validation/validate.h"

namespace validation {

struct MovedParameter {
    std::string name, meaning;
    double from = 0, to = 0;
    double deviation_before = 0, deviation_after = 0;
};

struct InstallationCalibration {
    sim::Posterior posterior;
    std::vector<MovedParameter> moved;  // by how far they moved in deviations, the farthest first
    Validation before, after;           // the rows by what was known and by what is
    int used = 0;                       // rows
};

struct InstallationOptions {
    int threads = 0;
};

// A Bayesian fit from `start`, linearised anew where it leads. Constants that no row answers to stay as they
// are. Rows that cannot be predicted are left out: `before` has their status and reason. Diagnosed: a
// duplicate id; no row that can be used.
std::optional<InstallationCalibration> calibrate_installation(const core::CsvTable& runs,
                                                              const core::CsvTable& clusters,
                                                              const sim::Posterior& start,
                                                              core::Diagnostics& diagnostics,
                                                              const InstallationOptions& options = {});

// The fit alone, for callers that need no account of the rows; the number of rows used with it.
std::pair<sim::Posterior, int> learn_runs(const core::CsvTable& runs, const core::CsvTable& clusters,
                                          const sim::Posterior& start,
                                          const InstallationOptions& options = {});

core::Value to_value(const InstallationCalibration& calibration);

}  // namespace validation
