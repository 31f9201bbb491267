// How good predictions are: errors per group, their macro average over groups, and rank agreement over
// sweeps. Definitions as in docs/accuracy.md.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/units.h"

namespace validation {

enum class PredictionStatus { ok, unsupported, error };
std::string_view name_of(PredictionStatus status);

struct ScoredRow {
    std::string id, group;
    PredictionStatus status = PredictionStatus::ok;
    std::string reason;  // when the status is not ok; of a row that is, what speaks against it
    core::Seconds predicted, measured;
    std::optional<core::Bytes> predicted_peak, measured_peak;
    std::string framework;  // profile that the row was priced with; empty: the row was not read
    std::vector<std::string> assumptions;  // what the row leaves open, and what was taken
    std::optional<std::pair<core::Seconds, core::Seconds>> predicted_80;  // low and high, where asked for
    std::optional<std::pair<core::Bytes, core::Bytes>> predicted_peak_80;
};

// Error of a row = |predicted / measured - 1|; a row whose status is not ok counts as 1.
struct GroupScore {
    std::string group;
    int rows = 0;
    double mape = 0, median = 0, bias = 0,
           p95 = 0;  // fractions; bias is the mean signed error of the rows that are ok
    std::string worst_id;
};

struct Sweep {
    std::string id;
    std::vector<std::string> row_ids;  // repeats of one plan are averaged before ranking: equal `plan_key`s
};

struct SweepScore {
    std::string id;
    int plans = 0;
    double spearman = 0;  // of predicted against measured times
    double regret = 0;    // measured time of the predicted best over the best measured - 1
};

std::vector<GroupScore> score_groups(const std::vector<ScoredRow>& rows);  // by group name
double macro_mape(const std::vector<GroupScore>& groups);
std::optional<double> memory_mape(const std::vector<ScoredRow>& rows);  // over rows that carry both peaks

// Share of the rows whose measured time lies in the interval; a row without one is outside. Nothing where no
// row has one.
std::optional<double> coverage_80(const std::vector<ScoredRow>& rows);

struct PlanTimes {
    double predicted = 0, measured = 0;
};
SweepScore score_sweep(const std::string& id, const std::vector<PlanTimes>& plans);
// Spearman's rank correlation with average ranks for ties; 0 when either side is constant or there are fewer
// than two values.
double spearman(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace validation
