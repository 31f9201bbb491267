#include "validation/score.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace validation {

std::string_view name_of(PredictionStatus status) {
    switch (status) {
        case PredictionStatus::ok: return "ok";
        case PredictionStatus::unsupported: return "unsupported";
        case PredictionStatus::error: return "error";
    }
    throw core::InternalError("broken promise: every status has a name");
}

namespace {

double error_of(const ScoredRow& row) {
    return row.status == PredictionStatus::ok ? std::abs(row.predicted / row.measured - 1) : 1.0;
}

// Linear interpolation between order statistics, as numpy.percentile does.
double quantile(std::vector<double> values, double q) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double position = q * static_cast<double>(values.size() - 1);
    const std::size_t below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

std::vector<double> ranks_of(const std::vector<double>& values) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    std::vector<double> ranks(values.size());
    for (std::size_t i = 0; i < order.size();) {
        std::size_t j = i;
        while (j < order.size() && values[order[j]] == values[order[i]]) ++j;
        for (std::size_t k = i; k < j; ++k)
            ranks[order[k]] = (static_cast<double>(i) + static_cast<double>(j) - 1) / 2;
        i = j;
    }
    return ranks;
}

}  // namespace

std::vector<GroupScore> score_groups(const std::vector<ScoredRow>& rows) {
    std::map<std::string, std::vector<const ScoredRow*>> by_group;
    for (const ScoredRow& row : rows) by_group[row.group].push_back(&row);
    std::vector<GroupScore> scores;
    for (const auto& [group, members] : by_group) {
        GroupScore score;
        score.group = group;
        score.rows = core::count_of(members);
        std::vector<double> errors;
        double signed_sum = 0;
        int predicted = 0;
        std::optional<double> worst;
        for (const ScoredRow* row : members) {
            errors.push_back(error_of(*row));
            if (row->status == PredictionStatus::ok) {
                signed_sum += row->predicted / row->measured - 1;
                ++predicted;
            }
            if (!worst || errors.back() > *worst) {
                worst = errors.back();
                score.worst_id = row->id;
            }
        }
        score.mape = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
        score.median = quantile(errors, 0.5);
        score.p95 = quantile(errors, 0.95);
        score.bias = predicted > 0 ? signed_sum / predicted : 0;
        scores.push_back(score);
    }
    return scores;
}

std::optional<double> coverage_80(const std::vector<ScoredRow>& rows) {
    const auto has_interval = [](const ScoredRow& row) { return row.predicted_80.has_value(); };
    if (std::none_of(rows.begin(), rows.end(), has_interval)) return std::nullopt;
    const auto inside = std::count_if(rows.begin(), rows.end(), [](const ScoredRow& row) {
        return row.predicted_80 && row.measured >= row.predicted_80->first &&
               row.measured <= row.predicted_80->second;
    });
    return double(inside) / double(rows.size());
}

double macro_mape(const std::vector<GroupScore>& groups) {
    double sum = 0;
    for (const GroupScore& group : groups) sum += group.mape;
    return groups.empty() ? 0 : sum / static_cast<double>(groups.size());
}

std::optional<double> memory_mape(const std::vector<ScoredRow>& rows) {
    double sum = 0;
    int count = 0;
    for (const ScoredRow& row : rows)
        if (row.measured_peak) {
            sum += row.predicted_peak ? std::abs(*row.predicted_peak / *row.measured_peak - 1) : 1.0;
            ++count;
        }
    if (count == 0) return std::nullopt;
    return sum / count;
}

SweepScore score_sweep(const std::string& id, const std::vector<PlanTimes>& plans) {
    SweepScore score;
    score.id = id;
    score.plans = core::count_of(plans);
    std::vector<double> predicted, measured;
    for (const PlanTimes& plan : plans) {
        predicted.push_back(plan.predicted);
        measured.push_back(plan.measured);
    }
    score.spearman = spearman(predicted, measured);
    if (!plans.empty()) {
        const std::size_t chosen = static_cast<std::size_t>(
            std::min_element(predicted.begin(), predicted.end()) - predicted.begin());
        score.regret = measured[chosen] / *std::min_element(measured.begin(), measured.end()) - 1;
    }
    return score;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size() || a.size() < 2) return 0;
    const std::vector<double> x = ranks_of(a), y = ranks_of(b);
    const double mean = (static_cast<double>(a.size()) - 1) / 2;
    double xy = 0, xx = 0, yy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

}  // namespace validation
