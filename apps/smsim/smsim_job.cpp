#include "apps/smsim/smsim_job.h"

#include <fmt/core.h>

#include <optional>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/searched_order.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "jobs/gantt.h"
#include "jobs/job.h"
#include "jobs/job_report.h"
#include "sim/scenario.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim job SCENARIO.toml [--set KEY=VALUE]... [--gantt FILE.csv] [--json]\n"
    "\n"
    "Predicts a whole training from the [job] table of a scenario: acquire, download, steps, evaluations,\n"
    "checkpoints, failures, reclaimed spot instances, upload; time, cost and goodput as distributions over\n"
    "many seeded runs, and the chart and bill of the median one. docs/jobs.md says what is modelled.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: job.checkpoint.interval=1h, cluster.nodes=32\n"
    "  --gantt FILE.csv     what the median run did when\n"
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
    std::optional<std::string> gantt;
    bool as_json = false, wants_help = false;
};

Request read_arguments(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments, {{"--set", "--gantt"}, {"--json", "--help"}}, diagnostics);
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
    return request;
}

struct Task {
    jobs::Job job;
    sim::Scenario scenario;
    core::Value table;  // [job]
};

// All that is wrong with either is told at once.
std::optional<Task> read_task(const Request& request, core::Diagnostics& diagnostics) {
    if (request.scenario.empty()) return std::nullopt;
    std::optional<core::Value> document = sim::load_scenario_document(request.scenario, diagnostics);
    if (!document) return std::nullopt;
    for (const std::string& text : request.set)
        if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    std::optional<sim::Scenario> scenario = sim::read_scenario(*document, request.scenario, diagnostics);
    const core::Value* table = document->find("job");
    std::optional<jobs::Job> job;
    if (table != nullptr) job = jobs::read_job(*table, diagnostics);
    else
        diagnostics.error(document->location, "job", "the scenario has no [job] table",
                          "add one, for example [job] with steps = 10000 (docs/jobs.md)");
    if (!scenario || !job || diagnostics.has_errors()) return std::nullopt;
    std::string explanation;
    if (!search_order(*scenario, diagnostics, explanation)) return std::nullopt;
    return Task{std::move(*job), std::move(*scenario), *table};
}

int refuse(const std::string& reason, const std::string& hint, bool as_json, std::ostream& out,
           std::ostream& err) {
    core::Diagnostics diagnostics;
    diagnostics.error({}, "job", reason, hint);
    show(diagnostics, as_json, out, err);
    return no_plan;
}

// One run tells how many interruptions all of them have.
bool is_too_much_work(const jobs::JobModel& model, const Task& task, core::Diagnostics& diagnostics) {
    const jobs::JobRun pilot = jobs::simulate_run(model, task.job.simulation.seed, 0);
    if (!pilot.is_finished) return false;  // told as what it is
    const double interruptions = double(pilot.failures + pilot.reclaims);
    if (interruptions * double(task.job.simulation.runs) <= most_interruptions) return false;
    diagnostics.error(task.table.location, "job.simulation.runs",
                      fmt::format("{} runs of about {:.0f} interruptions each are too many to simulate",
                                  task.job.simulation.runs, interruptions),
                      fmt::format("give at most {:.0f} runs", most_interruptions / interruptions));
    return true;
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
    const std::optional<Task> task = read_task(request, diagnostics);
    if (!task) return show(diagnostics, as_json, out, err);
    std::optional<jobs::ResolvedJob> resolved =
        jobs::resolve_job(task->job, task->scenario, task->table, diagnostics);
    if (!resolved) return show(diagnostics, as_json, out, err);
    if (resolved->does_not_fit)
        return refuse("the plan does not fit into memory: " + *resolved->does_not_fit,
                      "smsim SCENARIO.toml says where; a given job.step_time needs no prediction", as_json,
                      out, err);
    if (is_too_much_work(resolved->model, *task, diagnostics)) return show(diagnostics, as_json, out, err);
    if (!as_json) err << core::format(diagnostics);

    jobs::JobAnswer answer{std::move(*resolved), {}, {}, {}, {}, {task->job.finish_by, task->job.budget}};
    const jobs::JobModel& model = answer.job.model;
    answer.distribution = jobs::simulate_job(model, task->job.simulation, answer.goals);
    if (answer.distribution.unfinished > 0)
        return refuse(
            fmt::format("the job does not end: after {} interruptions it is not done, with one every "
                        "{} on average",
                        jobs::RunOptions().most_interruptions, core::format(*model.cluster_mtbf())),
            "checkpoint more often than that, or restart faster", as_json, out, err);
    answer.best = jobs::find_best_interval(model, task->job.simulation);
    jobs::RunOptions kept;
    kept.stretches = &answer.stretches;
    answer.median =
        jobs::simulate_run(model, task->job.simulation.seed, answer.distribution.median_run, kept);
    if (as_json) out << core::to_json(jobs::to_value(answer)) << '\n';
    else out << jobs::text_of(answer, task->scenario.question);
    if (request.gantt) return write_outputs({{*request.gantt, jobs::gantt_csv(answer.stretches)}}, err);
    return good;
}

}  // namespace apps
