#include "validation/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/index/integers.h"
#include "validation/validate.h"

namespace validation {

namespace {

constexpr double clip = 0.4;           // a row that is off by more has a cause no constant can mend
constexpr double prior_weight = 4e-4;  // macro error worth a deviation of a quarter of the physical range
constexpr double unmoved = 1e-7;       // change of a logarithm that counts as none

// Values at which a constant is sampled: the prior and steps around the centre, inside the physical range.
std::vector<double> sample_values(const sim::NamedConstant& constant, double centre) {
    std::vector<double> values = {centre, constant.prior};
    const double step = 0.12 * std::max(std::abs(centre), 0.25 * (constant.greatest - constant.least));
    for (const double steps : {-3.0, -1.0, 1.0, 3.0}) values.push_back(centre + steps * step);
    for (double& value : values) value = std::clamp(value, constant.least, constant.greatest);
    std::sort(values.begin(), values.end());
    values.erase(
        std::unique(values.begin(), values.end(), [](double a, double b) { return std::abs(a - b) < 1e-12; }),
        values.end());
    return values;
}

}  // namespace

std::optional<Responses> Responses::measure(const core::CsvTable& runs, const core::CsvTable& clusters,
                                            const sim::CostConstants& centre, core::Diagnostics& diagnostics,
                                            const Options& options) {
    const auto logs = [&](const core::CsvTable& table,
                          const sim::CostConstants& constants) -> std::optional<std::vector<double>> {
        const std::optional<Validation> validation =
            validate(table, clusters, nullptr, diagnostics,
                     {.constants = constants, .threads = options.threads, .progress = {}});
        if (!validation) return std::nullopt;
        std::vector<double> result;
        for (const ScoredRow& row : validation->rows)
            result.push_back(row.status == PredictionStatus::ok ? std::log(row.predicted / row.measured)
                                                                : 0.0);
        return result;
    };
    Responses responses;
    const std::optional<std::vector<double>> base = logs(runs, centre);
    if (!base) return std::nullopt;
    responses.base_ = *base;
    std::map<std::string, int> group_numbers;
    for (const core::CsvRow& row : runs.rows)
        responses.group_.push_back(
            group_numbers.try_emplace(std::string(runs.cell(row, "group")), core::count_of(group_numbers))
                .first->second);
    responses.groups_ = core::count_of(group_numbers);

    const std::span<const sim::NamedConstant> constants = sim::named_constants();
    for (std::size_t c = 0; c < constants.size(); ++c) {
        if (options.progress) options.progress(c, constants.size());
        const double here = centre.*constants[c].value;
        responses.samples_.push_back(constants[c].is_fitted ? sample_values(constants[c], here)
                                                            : std::vector<double>{here});
        const std::vector<double>& values = responses.samples_.back();
        std::vector<std::vector<double>>& of_rows = responses.responses_.emplace_back(runs.rows.size());
        // Rows that do not answer to the extremes are not asked for the rest.
        std::vector<std::size_t> asked(runs.rows.size());
        for (std::size_t i = 0; i < asked.size(); ++i) asked[i] = i;
        std::vector<std::size_t> order(values.size());
        for (std::size_t v = 0; v < order.size(); ++v)
            order[v] = v == 0 ? 0 : v == 1 ? order.size() - 1 : v - 1;
        for (std::size_t n = 0; n < order.size() && !asked.empty(); ++n) {
            const std::size_t v = order[n];
            if (values[v] == here) continue;
            sim::CostConstants changed = centre;
            changed.*constants[c].value = values[v];
            core::CsvTable table{runs.file, runs.header, {}};
            for (std::size_t i : asked) table.rows.push_back(runs.rows[i]);
            const std::optional<std::vector<double>> result = logs(table, changed);
            if (!result) return std::nullopt;
            for (std::size_t i = 0; i < asked.size(); ++i) {
                const double change = (*result)[i] - responses.base_[asked[i]];
                if (of_rows[asked[i]].empty() && std::abs(change) < unmoved) continue;
                of_rows[asked[i]].resize(values.size(), 0.0);
                of_rows[asked[i]][v] = change;
            }
            if (n == 1) std::erase_if(asked, [&](std::size_t row) { return of_rows[row].empty(); });
        }
    }
    return responses;
}

double Responses::response(std::size_t constant, std::size_t row, double value) const {
    const std::vector<double>& changes = responses_[constant][row];
    if (changes.empty()) return 0;
    const std::vector<double>& values = samples_[constant];
    const auto above = std::lower_bound(values.begin(), values.end(), value);
    if (above == values.begin()) return changes.front();
    if (above == values.end()) return changes.back();
    const std::size_t at = above - values.begin();
    const double t = (value - values[at - 1]) / (values[at] - values[at - 1]);
    return changes[at - 1] + t * (changes[at] - changes[at - 1]);
}

double Responses::log_ratio(std::size_t row, const std::vector<double>& values) const {
    double sum = base_[row];
    for (std::size_t c = 0; c < values.size(); ++c) sum += response(c, row, values[c]);
    return sum;
}

double Responses::error(std::size_t row, const sim::CostConstants& constants) const {
    std::vector<double> values;
    for (const sim::NamedConstant& constant : sim::named_constants())
        values.push_back(constants.*constant.value);
    return std::expm1(log_ratio(row, values));
}

sim::CostConstants Responses::fit(const std::vector<bool>& is_used) const {
    const std::span<const sim::NamedConstant> constants = sim::named_constants();
    std::vector<double> group_rows(groups_, 0.0);
    int groups_in_use = 0;
    for (std::size_t i = 0; i < base_.size(); ++i)
        if (is_used[i] && group_rows[group_[i]]++ == 0) ++groups_in_use;
    std::vector<std::vector<std::size_t>> rows_of(constants.size());
    for (std::size_t c = 0; c < constants.size(); ++c)
        for (std::size_t i = 0; i < base_.size(); ++i)
            if (is_used[i] && !responses_[c][i].empty()) rows_of[c].push_back(i);

    // Start where nothing of the rows is known.
    std::vector<double> values;
    for (std::size_t c = 0; c < constants.size(); ++c)
        values.push_back(constants[c].is_fitted ? constants[c].prior : samples_[c].front());
    std::vector<double> logs(base_.size());
    for (std::size_t i = 0; i < base_.size(); ++i) logs[i] = log_ratio(i, values);

    const auto cost = [&](std::size_t c, double value) {
        double sum = 0;
        for (std::size_t i : rows_of[c]) {
            const double log = logs[i] - response(c, i, values[c]) + response(c, i, value);
            sum += std::min(clip, std::abs(std::expm1(log))) / group_rows[group_[i]];
        }
        const double deviation =
            4 * (value - constants[c].prior) / (constants[c].greatest - constants[c].least);
        return sum / groups_in_use + prior_weight * deviation * deviation;
    };
    for (double step = 0.25; step > 0.003; step /= 1.6)
        for (int pass = 0; pass < 4; ++pass)
            for (std::size_t c = 0; c < constants.size(); ++c) {
                if (!constants[c].is_fitted || rows_of[c].empty()) continue;
                const double length =
                    step * std::max(std::abs(values[c]), 0.1 * (constants[c].greatest - constants[c].least));
                double best = values[c], least = cost(c, best);
                for (const double sign : {-1.0, 1.0}) {
                    const double tried =
                        std::clamp(values[c] + sign * length, samples_[c].front(), samples_[c].back());
                    if (const double price = cost(c, tried); price < least - 1e-9) {
                        least = price;
                        best = tried;
                    }
                }
                if (best == values[c]) continue;
                for (std::size_t i = 0; i < base_.size(); ++i)
                    logs[i] += response(c, i, best) - response(c, i, values[c]);
                values[c] = best;
            }

    sim::CostConstants fitted;
    for (std::size_t c = 0; c < constants.size(); ++c) fitted.*constants[c].value = values[c];
    for (std::size_t c = 0; c < constants.size(); ++c)
        if (constants[c].is_fitted && rows_of[c].empty() && constants[c].carried_from)
            fitted.*constants[c].value = fitted.*constants[c].carried_from;
    return fitted;
}

}  // namespace validation
