// Predicts every row of a file of published measurements and scores the predictions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "sim/cost/constants.h"
#include "sim/uncertainty/posterior.h"
#include "validation/score.h"

namespace validation {

struct Validation {
    std::vector<ScoredRow> rows;  // in the order of the file
    std::vector<GroupScore> groups;
    double macro_mape = 0;
    std::optional<double> memory_mape;
    std::optional<double> coverage_80;  // of the rows by their intervals, where they were asked for
    std::vector<SweepScore> sweeps;
    // Rows that were left out, and with them the sweeps that have one, because the caller stopped it. Scores
    // are of the rows that were predicted.
    std::size_t left_out = 0;
};

struct ValidateOptions {
    sim::CostConstants constants = {};
    // What runs of an installation taught: its constants take the place of `constants`, and its site effects
    // are applied. Must outlive the call.
    const sim::Posterior* calibration = nullptr;
    bool has_intervals = false;
    int threads = 0;  // 0 = one per core
    std::function<void(std::size_t, std::size_t)> progress =
        {};                                 // (done, all), called from one thread at a time
    std::function<bool()> is_stopped = {};  // true: no further row is begun; asked by several threads at once
};

// `sweeps` may be null. A row with a wrong cell has the status `error` and says where; the others are
// predicted all the same. A duplicate id is diagnosed.
std::optional<Validation> validate(const core::CsvTable& runs, const core::CsvTable& clusters,
                                   const core::CsvTable* sweeps, core::Diagnostics& diagnostics,
                                   const ValidateOptions& options = {});

// The keys of the command-line contract: rows[], groups[], macro_mape_pct, memory_mape_pct, coverage_80_pct,
// sweeps[].
core::Value to_value(const Validation& validation);

}  // namespace validation
