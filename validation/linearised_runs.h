// Published runs as the fits of uncertainty see them: how far off each prediction is, what the run is known
// to be, and how its prediction answers to the constants.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics_fwd.h"
#include "sim/cost/constants.h"
#include "sim/evaluate.h"
#include "sim/uncertainty/responses.h"
#include "sim/uncertainty/run_facts.h"

namespace validation {

struct LinearisedRun {
    std::size_t row = 0;  // of the table
    std::string id, group;
    sim::RunFacts facts;
    sim::Breakdown breakdown;  // as predicted by the constants alone
    double noise = 0;          // of the measurement, as a fraction (column noise_pct, where there is one)
    double log_error = 0;      // log(measured / predicted) of the step time
    std::optional<double> log_peak_error;  // ... of the peak memory, where it is published
    sim::ConstantResponses responses;
};

struct LinearisedRuns {
    std::vector<LinearisedRun> runs;  // those that can be predicted, in the order of the table
    struct Refusal {
        std::size_t row = 0;
        std::string id, reason;
    };
    std::vector<Refusal> refused;
};

struct LineariseOptions {
    sim::CostConstants constants = {};
    int threads = 0;
    std::function<void(std::size_t, std::size_t)> progress = {};  // (done, all), one thread at a time
};

// As a table and back, so that fits can be tried again without predicting: shares of the breakdown in place
// of its times. `runs` is the table that they were made of; a row of the other that it does not have, or a
// constant of another version, is diagnosed.
std::string to_csv(const LinearisedRuns& runs);
LinearisedRuns read_linearised(const core::CsvTable& table, const core::CsvTable& runs,
                               core::Diagnostics& diagnostics);

LinearisedRuns linearise(const core::CsvTable& runs, const core::CsvTable& clusters,
                         const LineariseOptions& options = {});

}  // namespace validation
