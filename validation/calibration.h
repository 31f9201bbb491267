// Fits the constants of the cost model to published measurements, with rows left out: what the others say of
// a constant, and what it is where nobody says anything.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics_fwd.h"
#include "sim/cost/constants.h"

namespace validation {

// How the prediction of every row answers to every constant, sampled one constant at a time around a centre.
// Constants enter as sums of terms and maxima, so the logarithm of a prediction is close to a sum of
// functions of one constant each; `fit` works on that sum, so its caller has to predict again with the
// constants found.
class Responses {
public:
    struct Options {
        int threads = 0;
        std::function<void(std::size_t, std::size_t)> progress;  // (done, all) of the constants
    };
    // Rows that cannot be predicted are left out; wrong input is diagnosed and nothing is returned.
    static std::optional<Responses> measure(const core::CsvTable& runs, const core::CsvTable& clusters,
                                            const sim::CostConstants& centre, core::Diagnostics& diagnostics,
                                            const Options& options);

    // The constants with the least error over the rows in use: mean over their groups of the mean absolute
    // error, each clipped at `clip`, plus a weak pull towards the priors that decides where the rows say
    // nothing. A constant that no row in use answers to takes its prior, or the value of the one it is
    // carried from.
    sim::CostConstants fit(const std::vector<bool>& is_used) const;
    // Predicted over measured - 1 of a row by the sum of responses.
    double error(std::size_t row, const sim::CostConstants& constants) const;
    bool answers(std::size_t row, std::size_t constant) const { return !responses_[constant][row].empty(); }

private:
    double log_ratio(std::size_t row, const std::vector<double>& values) const;
    double response(std::size_t constant, std::size_t row, double value) const;

    std::vector<double> base_;                  // log(predicted / measured) at the centre, by row
    std::vector<int> group_;                    // by row
    std::vector<std::vector<double>> samples_;  // [constant]: values, ascending
    std::vector<std::vector<std::vector<double>>>
        responses_;  // [constant][row][sample]: change of the log; empty = none
    int groups_ = 0;
};

}  // namespace validation
