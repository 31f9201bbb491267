#include "apps/smsim/published/published_answer.h"

#include "api/searched_order.h"
#include "apps/smsim/job_scenario.h"
#include "cluster/profile/supply.h"
#include "core/diagnostics.h"
#include "jobs/job_distribution.h"
#include "jobs/resolve_job.h"
#include "sim/evaluate.h"
#include "sim/report/report.h"
#include "sim/scenario.h"

namespace apps {

namespace {

std::optional<double> step_figure(const PublishedCase& published, const std::vector<std::string>& set,
                                  core::Diagnostics& diagnostics) {
    std::optional<core::Value> document = sim::load_scenario_document(published.scenario, diagnostics);
    if (!document) return std::nullopt;
    for (const std::string& text : set)
        if (const auto assignment = sim::parse_assignment(text, "set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    std::optional<sim::Scenario> scenario = sim::read_scenario(*document, published.scenario, diagnostics);
    std::string explanation;
    if (!scenario || !api::search_order(*scenario, diagnostics, explanation)) return std::nullopt;
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, scenario->file.plan, diagnostics);
    if (!evaluation) return std::nullopt;
    const core::Value value = sim::to_value(*evaluation, scenario->graph, scenario->file.plan);
    const core::Value* figure = value.find(published.figure);
    if (figure != nullptr && figure->is_number()) return figure->number();
    diagnostics.error({}, "figure", "a step has no figure '" + published.figure + "'",
                      "take a key of smsim SCENARIO.toml --json, for example samples_per_s");
    return std::nullopt;
}

// Of all boards at their limit from the first instance to the release.
std::optional<double> kilowatts(const sim::Scenario& scenario, core::Diagnostics& diagnostics) {
    constexpr double watts_per_kilowatt = 1000;
    const cluster::Supply supply = cluster::supply_of(scenario.cluster.instance, diagnostics);
    if (!supply.board_watts) return std::nullopt;
    return *supply.board_watts * scenario.cluster.device_count() / watts_per_kilowatt;
}

std::optional<PublishedAnswer> job_figure(const PublishedCase& published, core::Diagnostics& diagnostics) {
    const std::optional<JobScenario> task = read_job_scenario(published.scenario, published.set, diagnostics);
    if (!task) return std::nullopt;
    if (!task->job) {
        diagnostics.error({}, "scenario", published.scenario + " has no [job] table", "add one");
        return std::nullopt;
    }
    const std::optional<jobs::ResolvedJob> resolved =
        jobs::resolve_job(*task->job, task->scenario, *task->document.find("job"), diagnostics);
    if (!resolved) return std::nullopt;
    const jobs::JobDistribution d = jobs::simulate_job(resolved->model, task->job->simulation);
    const auto answer = [](const jobs::Quantiles& q, double factor = 1) {
        return PublishedAnswer{q.p50 * factor, q.p10 * factor, q.p90 * factor};
    };
    if (d.unfinished == 0) {
        if (published.figure == "hours") return answer(d.hours);
        if (published.figure == "goodput") return answer(d.goodput);
        if (published.figure == "interruptions") return answer(d.interruptions);
        if (published.figure == "usd" && d.usd) return answer(*d.usd);
        if (published.figure == "energy_kwh")
            if (const std::optional<double> power = kilowatts(task->scenario, diagnostics))
                return answer(d.hours, *power);
    }
    diagnostics.error({}, "figure", published.name + ": its job has no figure '" + published.figure + "'",
                      "take hours, goodput, interruptions, usd or energy_kwh");
    return std::nullopt;
}

}  // namespace

std::optional<PublishedAnswer> answer_of(const PublishedCase& published, core::Diagnostics& diagnostics) {
    if (published.kind == PublishedKind::job) return job_figure(published, diagnostics);
    const std::optional<double> value = step_figure(published, published.set, diagnostics);
    if (!value || published.kind == PublishedKind::step)
        return value ? std::optional(PublishedAnswer{*value, {}, {}}) : std::nullopt;
    const std::optional<double> other = step_figure(published, published.against, diagnostics);
    if (!other) return std::nullopt;
    return PublishedAnswer{100 * (*value / *other - 1), {}, {}};
}

}  // namespace apps
