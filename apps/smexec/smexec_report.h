// What `smexec PLAN.toml` tells about a run: measured, beside predicted when there is a prediction.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "api/report_page/report_page.h"
#include "apps/smexec/smexec_job.h"
#include "exec/profile/compare.h"
#include "exec/runtime/run.h"

namespace apps {

struct CheckedLosses {
    std::vector<double> reference;
    double largest_difference = 0;       // relative
    double allowed = 1e-5;               // by the precision of the products
    std::vector<double> bounds;          // by step, where the model's conditioning was considered
    bool has_wrong_step = false;         // farther apart than its bound, or than `allowed`
    std::vector<double> router_margins;  // exec::ReferenceResult
    bool is_wrong() const { return has_wrong_step; }
};

struct ExecutionReport {
    const ExecutionRequest& request;
    const ExecutionJob& job;
    const exec::RunResult& result;
    exec::StepTimes times;
    std::optional<sim::Evaluation> predicted;
    std::optional<exec::Comparison> comparison;  // when predicted
    std::optional<CheckedLosses> checked;
    std::string ranks_are;  // "threads", "processes over TCP on 2 hosts"
    std::string transport;  // "threads", "TCP", "MPI"
    int hosts = 1;
    int first_step = 0, warm_up_steps = 0;
    std::vector<std::string> remarks;

    double error_percent() const;  // of the predicted step
    bool is_too_far() const;       // beyond --tolerance, and more than repetitions differ by themselves
};

// As text (remarks on `err`) or as the contract's document.
void show_report(const ExecutionReport& report, std::ostream& out, std::ostream& err);

// The same as a page, with the timeline of the last step beside the predicted one.
api::ReportPage page_of(const ExecutionReport& report);

// Of a training that a signal ended: where its checkpoint is.
void show_interruption(const ExecutionRequest& request, const ExecutionJob& job,
                       const exec::RunResult& result, std::ostream& out, std::ostream& err);
// Of a training that --resume found at its end: nothing was run.
// --steps 0 wrote the state at the beginning.
void show_written_start(const ExecutionRequest& request, const ExecutionJob& job, std::ostream& out);
void show_finished(const ExecutionRequest& request, const ExecutionJob& job, std::ostream& out,
                   std::ostream& err);

}  // namespace apps
