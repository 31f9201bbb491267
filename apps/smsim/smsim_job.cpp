#include "apps/smsim/smsim_job.h"

#include <fmt/core.h>

#include <optional>
#include <ostream>

#include "api/report_page/report_page.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/job_scenario.h"
#include "apps/smsim/plan_on_nodes.h"
#include "apps/terminal.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "jobs/gantt.h"
#include "jobs/job.h"
#include "jobs/job_report.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim job SCENARIO.toml [--set KEY=VALUE]... [--gantt FILE.csv] [--html FILE] [--json]\n"
    "\n"
    "Predicts a whole training from the [job] table of a scenario: acquire, download, steps, evaluations,\n"
    "checkpoints, failures, reclaimed spot instances, upload; time, cost and goodput as distributions over\n"
    "many seeded runs, and the chart and bill of the median one. docs/jobs.md says what is modelled.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: job.checkpoint.interval=1h, cluster.nodes=32\n"
    "  --gantt FILE.csv     what the median run did when\n"
    "  --html FILE          the figures and the chart as a page of its own\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory or the job\n"
    "does not end, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim job scenarios/job_llama3_405b.toml --set job.checkpoint.interval=10min\n";

// Interruptions of all runs together; a minute of one core.
constexpr double most_interruptions = 2e8;

struct Request {
    std::string scenario;
    std::vector<std::string> set;
    std::optional<std::string> gantt, html;
    bool as_json = false, wants_help = false;
};

Request read_arguments(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments, {{"--set", "--gantt", "--html"}, {"--json", "--help"}}, diagnostics);
    Request request;
    request.wants_help = options.has("--help");
    request.as_json = options.has("--json");
    request.set = options.all("--set");
    if (request.wants_help) return request;
    request.scenario = options.only_positional("SCENARIO.toml", "scenario",
                                               "smsim job SCENARIO.toml; smsim job --help shows an example");
    if (options.has("--gantt")) {
        request.gantt = options.text("--gantt").value_or("");
        check_output("--gantt", *request.gantt, diagnostics);
    }
    if (options.has("--html")) {
        request.html = options.text("--html").value_or("");
        api::check_report("--html", *request.html, diagnostics);
    }
    return request;
}

int refuse(const std::string& reason, const std::string& hint, bool as_json, std::ostream& out,
           std::ostream& err) {
    core::Diagnostics diagnostics;
    diagnostics.error({}, "job", reason, hint);
    show(diagnostics, as_json, out, err);
    return no_plan;
}

// One run tells how many interruptions all of them have.
bool is_too_much_work(const jobs::JobModel& model, const jobs::SimulationRule& rule,
                      const core::SourceLocation& place, core::Diagnostics& diagnostics) {
    const jobs::JobRun pilot = jobs::simulate_run(model, rule.seed, 0);
    if (!pilot.is_finished) return false;  // told as what it is
    const double interruptions = double(pilot.failures + pilot.reclaims);
    if (interruptions * double(rule.runs) <= most_interruptions) return false;
    diagnostics.error(place, "job.simulation.runs",
                      fmt::format("{} runs of about {:.0f} interruptions each are too many to simulate",
                                  rule.runs, interruptions),
                      fmt::format("give at most {:.0f} runs", most_interruptions / interruptions));
    return true;
}

std::vector<OutputFile> files_of(const Request& request, const JobScenario& task,
                                 const jobs::JobAnswer& answer) {
    std::vector<OutputFile> files;
    if (request.gantt) files.push_back({*request.gantt, jobs::gantt_csv(answer.stretches)});
    if (request.html)
        files.push_back(api::report_file(
            *request.html,
            {.kind = api::ReportKind::job,
             .title = task.scenario.question.empty() ? request.scenario : task.scenario.question,
             .answer = jobs::to_value(answer),
             .text = jobs::text_of(answer, task.scenario.question),
             .activities = jobs::activities_of(answer.stretches)}));
    return files;
}

}  // namespace

int run_job_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    const Request request = read_arguments(arguments, diagnostics);
    if (request.wants_help) {
        out << help;
        return good;
    }
    std::optional<JobScenario> task;
    if (!request.scenario.empty()) task = read_job_scenario(request.scenario, request.set, diagnostics);
    if (task && !task->job)
        diagnostics.error(task->document.location, "job", "the scenario has no [job] table",
                          "add one, for example [job] with steps = 10000 (docs/jobs.md)");
    if (!task || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const jobs::Job& job = *task->job;
    const core::Value& table = *task->document.find("job");
    std::optional<jobs::ResolvedJob> resolved = jobs::resolve_job(
        job, task->scenario, table, diagnostics, plan_on_nodes(task->scenario, job.simulation.threads));
    if (!resolved) return show(diagnostics, as_json, out, err);
    if (resolved->does_not_fit)
        return refuse("the plan does not fit into memory: " + *resolved->does_not_fit,
                      "smsim SCENARIO.toml says where; a given job.step_time needs no prediction", as_json,
                      out, err);
    if (is_too_much_work(resolved->model, job.simulation, table.location, diagnostics))
        return show(diagnostics, as_json, out, err);
    if (!as_json) err << for_stderr(core::format(diagnostics));

    jobs::JobAnswer answer{std::move(*resolved), {}, {}, {}, {}, {job.finish_by, job.budget}};
    const jobs::JobModel& model = answer.job.model;
    answer.distribution = jobs::simulate_job(model, job.simulation, answer.goals);
    if (answer.distribution.unfinished > 0)
        return refuse(
            fmt::format("the job does not end: after {} interruptions it is not done, with one every "
                        "{} on average",
                        jobs::RunOptions().most_interruptions, core::format(*model.cluster_mtbf())),
            "checkpoint more often than that, or restart faster", as_json, out, err);
    answer.best = jobs::find_best_interval(model, job.simulation);
    jobs::RunOptions kept;
    kept.stretches = &answer.stretches;
    answer.median = jobs::simulate_run(model, job.simulation.seed, answer.distribution.median_run, kept);
    if (as_json) out << core::to_json(jobs::to_value(answer)) << '\n';
    else out << for_stdout(jobs::text_of(answer, task->scenario.question));
    return write_outputs(files_of(request, *task, answer), as_json, err);
}

}  // namespace apps
