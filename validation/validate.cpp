#include "validation/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <sstream>

#include "core/diagnostics.h"
#include "core/parallel.h"
#include "sim/evaluate.h"
#include "sim/uncertainty/interval.h"
#include "validation/prepared_run.h"
#include "validation/published_run.h"

namespace validation {

namespace {

// All errors, each once and with its location where it has one: some cells are read more than once.
std::string errors_of(const core::Diagnostics& diagnostics) {
    std::vector<std::string> errors;
    for (const core::Diagnostic& entry : diagnostics.entries()) {
        if (entry.severity != core::Severity::error) continue;
        std::string place;
        if (!entry.location.file.empty())
            place = fmt::format("{}:{}:{}: ", entry.location.file, entry.location.line,
                                std::max(1, entry.location.column));
        if (std::string error = place + entry.message;
            std::find(errors.begin(), errors.end(), error) == errors.end())
            errors.push_back(std::move(error));
    }
    std::string text;
    for (const std::string& error : errors) text += (text.empty() ? "" : "; ") + error;
    return text.empty() ? "no reason was given" : text;
}

void refuse(ScoredRow& row, PredictionStatus status, std::string reason) {
    row.status = status;
    row.reason = std::move(reason);
}

// Everything that can go wrong with one row is a status of the row: the other rows are predicted all the
// same.
void predict(const PublishedRun& run, const ValidateOptions& given, const sim::CostConstants& constants,
             ScoredRow& row) {
    core::Diagnostics diagnostics;
    const std::optional<PreparedRun> prepared = prepare(run, diagnostics, constants);
    if (!prepared) return refuse(row, PredictionStatus::unsupported, errors_of(diagnostics));
    sim::EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = 4 * run.plan.layout.pipeline * run.plan.virtual_stages;
    std::optional<sim::Evaluation> evaluation =
        evaluate(prepared->graph, prepared->cluster, prepared->plan, diagnostics, options);
    if (!evaluation) return refuse(row, PredictionStatus::unsupported, errors_of(diagnostics));
    if (given.calibration) sim::apply_site_effects(*evaluation, *given.calibration);
    row.predicted = evaluation->step_time;
    // It ran: that it should not have is a fault of the prediction, not of the row.
    if (!evaluation->fits) row.reason = "predicted not to fit: " + evaluation->tightest;
    row.predicted_peak = published_peak(run, prepared->plan, *evaluation);
    if (!given.has_intervals) return;
    const sim::Posterior& posterior = given.calibration ? *given.calibration : sim::shipped_posterior();
    const sim::PredictionIntervals intervals =
        intervals_of(*evaluation, prepared->graph, prepared->cluster, prepared->plan, posterior);
    row.predicted_80 = {intervals.step.low, intervals.step.high};
    if (evaluation->peak_memory.value > 0)
        row.predicted_peak_80 = {*row.predicted_peak * (intervals.peak.low / evaluation->peak_memory),
                                 *row.predicted_peak * (intervals.peak.high / evaluation->peak_memory)};
}

// Rows of a sweep with equal plans are repeats of one measurement.
std::string plan_key(const core::CsvTable& runs, const core::CsvRow& row) {
    std::string key;
    for (const char* column :
         {"model", "layers", "hidden", "cluster", "nodes", "tensor_parallel", "pipeline_parallel",
          "virtual_stages", "data_parallel", "sharding", "shard_degree", "micro_batch", "grad_accumulation",
          "recompute", "schedule", "sequence_parallel", "attention", "precision"})
        key += std::string(runs.cell(row, column)) + '|';
    return key;
}

SweepScore score_one_sweep(const std::string& id, const std::string& ids, const core::CsvTable& runs,
                           const std::map<std::string, std::size_t>& row_of,
                           const std::vector<ScoredRow>& rows) {
    struct Sum {
        double predicted = 0, measured = 0;
        int count = 0;
    };
    std::map<std::string, Sum> plans;
    std::istringstream words(ids);
    for (std::string word; words >> word;) {
        const auto found = row_of.find(word);
        if (found == row_of.end() || rows[found->second].status != PredictionStatus::ok) continue;
        Sum& sum = plans[plan_key(runs, runs.rows[found->second])];
        sum.predicted += rows[found->second].predicted.value;
        sum.measured += rows[found->second].measured.value;
        ++sum.count;
    }
    std::vector<PlanTimes> times;
    for (const auto& [key, sum] : plans)
        times.push_back({sum.predicted / sum.count, sum.measured / sum.count});
    return score_sweep(id, times);
}

// Predicts rows until the caller stops it: for each whether it was.
std::vector<char> predict_rows(const std::vector<std::optional<PublishedRun>>& inputs,
                               const ValidateOptions& options, std::vector<ScoredRow>& rows) {
    const sim::CostConstants constants =
        options.calibration ? options.calibration->cost_constants() : options.constants;
    std::vector<char> is_done(inputs.size(), 0);
    std::size_t done = 0;
    std::mutex reporting;
    core::for_each_in_parallel(inputs.size(), options.threads, [&](std::size_t i, int) {
        if (options.is_stopped && options.is_stopped()) return;
        if (inputs[i]) {
            try {
                predict(*inputs[i], options, constants, rows[i]);
            } catch (const std::exception& failure) {
                refuse(rows[i], PredictionStatus::error, failure.what());
            }
        }
        is_done[i] = 1;
        const std::lock_guard lock(reporting);
        ++done;
        if (options.progress) options.progress(done, inputs.size());
    });
    return is_done;
}

// Has every row of the sweep been predicted that the file has?
bool is_whole(const std::string& ids, const std::map<std::string, std::size_t>& row_of,
              const std::vector<char>& is_done) {
    std::istringstream words(ids);
    for (std::string word; words >> word;)
        if (const auto found = row_of.find(word); found != row_of.end() && !is_done[found->second])
            return false;
    return true;
}

// Leaves the rows out that were not predicted.
void keep(const std::vector<char>& is_done, Validation& validation) {
    std::vector<ScoredRow> rows;
    for (std::size_t i = 0; i < is_done.size(); ++i)
        if (is_done[i]) rows.push_back(std::move(validation.rows[i]));
    validation.left_out = is_done.size() - rows.size();
    validation.rows = std::move(rows);
}

}  // namespace

std::optional<Validation> validate(const core::CsvTable& runs, const core::CsvTable& clusters,
                                   const core::CsvTable* sweeps, core::Diagnostics& diagnostics,
                                   const ValidateOptions& options) {
    const std::size_t errors_before = diagnostics.error_count();
    Validation validation;
    validation.rows.resize(runs.rows.size());
    std::vector<std::optional<PublishedRun>> inputs(runs.rows.size());
    std::map<std::string, std::size_t> row_of;
    for (std::size_t i = 0; i < runs.rows.size(); ++i) {
        std::string unsupported;
        core::Diagnostics of_row;
        inputs[i] = read_run(runs, runs.rows[i], clusters, of_row, unsupported);
        ScoredRow& row = validation.rows[i];
        row.id = std::string(runs.cell(runs.rows[i], "id"));
        row.group = std::string(runs.cell(runs.rows[i], "group"));
        if (const std::optional<double> measured =
                core::parse_real(runs.cell(runs.rows[i], "measured_step_s")))
            row.measured = core::seconds(*measured);
        if (const std::optional<double> peak = core::parse_real(runs.cell(runs.rows[i], "measured_peak_gib")))
            row.measured_peak = core::gibibytes(*peak);
        if (inputs[i]) {
            row.framework = inputs[i]->plan.framework;
            row.assumptions = inputs[i]->assumptions;
        }
        if (of_row.has_errors()) refuse(row, PredictionStatus::error, errors_of(of_row));
        else if (!inputs[i]) refuse(row, PredictionStatus::unsupported, unsupported);
        if (!row_of.emplace(row.id, i).second)
            diagnostics.error(runs.location(runs.rows[i], "id"), "id",
                              "id " + core::in_quotes(row.id) + " stands twice", "give every row its own id");
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;

    const std::vector<char> is_done = predict_rows(inputs, options, validation.rows);
    if (sweeps != nullptr)
        for (const core::CsvRow& sweep : sweeps->rows)
            if (const std::string ids(sweeps->cell(sweep, "ids")); is_whole(ids, row_of, is_done))
                validation.sweeps.push_back(score_one_sweep(std::string(sweeps->cell(sweep, "sweep_id")), ids,
                                                            runs, row_of, validation.rows));
    keep(is_done, validation);
    validation.groups = score_groups(validation.rows);
    validation.macro_mape = macro_mape(validation.groups);
    validation.memory_mape = memory_mape(validation.rows);
    validation.coverage_80 = coverage_80(validation.rows);
    return validation;
}

core::Value to_value(const Validation& validation) {
    core::Value document;
    core::Value rows = core::Value::array();
    for (const ScoredRow& row : validation.rows) {
        core::Value one;
        one["id"] = row.id;
        one["group"] = row.group;
        one["status"] = std::string(name_of(row.status));
        one["reason"] = row.reason;
        one["framework_profile"] = row.framework;
        one["assumptions"] = row.assumptions;
        one["predicted_step_s"] =
            row.status == PredictionStatus::ok ? core::Value(row.predicted.value) : core::Value();
        one["measured_step_s"] = row.measured.value;
        one["predicted_peak_gib"] =
            row.predicted_peak ? core::Value(core::to_gibibytes(*row.predicted_peak)) : core::Value();
        one["measured_peak_gib"] =
            row.measured_peak ? core::Value(core::to_gibibytes(*row.measured_peak)) : core::Value();
        one["predicted_step_s_80"] = row.predicted_80
                                         ? core::Value(std::vector<double>{row.predicted_80->first.value,
                                                                           row.predicted_80->second.value})
                                         : core::Value();
        one["predicted_peak_gib_80"] =
            row.predicted_peak_80
                ? core::Value(std::vector<double>{core::to_gibibytes(row.predicted_peak_80->first),
                                                  core::to_gibibytes(row.predicted_peak_80->second)})
                : core::Value();
        rows.append(std::move(one));
    }
    document["rows"] = std::move(rows);
    core::Value groups = core::Value::array();
    for (const GroupScore& group : validation.groups) {
        core::Value one;
        one["group"] = group.group;
        one["rows"] = group.rows;
        one["mape_pct"] = 100 * group.mape;
        one["median_ape_pct"] = 100 * group.median;
        one["bias_pct"] = 100 * group.bias;
        one["p95_ape_pct"] = 100 * group.p95;
        one["worst_id"] = group.worst_id;
        groups.append(std::move(one));
    }
    document["groups"] = std::move(groups);
    document["macro_mape_pct"] = 100 * validation.macro_mape;
    document["memory_mape_pct"] =
        validation.memory_mape ? core::Value(100 * *validation.memory_mape) : core::Value();
    document["coverage_80_pct"] =
        validation.coverage_80 ? core::Value(100 * *validation.coverage_80) : core::Value();
    core::Value sweeps = core::Value::array();
    for (const SweepScore& sweep : validation.sweeps) {
        core::Value one;
        one["id"] = sweep.id;
        one["plans"] = sweep.plans;
        one["spearman"] = sweep.spearman;
        one["regret_pct"] = 100 * sweep.regret;
        sweeps.append(std::move(one));
    }
    document["sweeps"] = std::move(sweeps);
    return document;
}

}  // namespace validation
