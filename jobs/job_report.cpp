#include "jobs/job_report.h"

#include <fmt/core.h>

#include "core/display/text_table.h"
#include "core/errors.h"
#include "jobs/closed_form.h"
#include "jobs/gantt.h"

namespace jobs {

namespace {

constexpr double seconds_per_hour = 3600;
double hours(core::Seconds time) { return time.value / seconds_per_hour; }

void put(core::Value& value, const std::string& name, const std::optional<Quantiles>& quantiles) {
    value[name + "_mean"] = quantiles ? core::Value(quantiles->mean) : core::Value();
    value[name + "_p10"] = quantiles ? core::Value(quantiles->p10) : core::Value();
    value[name + "_p50"] = quantiles ? core::Value(quantiles->p50) : core::Value();
    value[name + "_p90"] = quantiles ? core::Value(quantiles->p90) : core::Value();
}

core::Value optional_value(const std::optional<double>& number) {
    return number ? core::Value(*number) : core::Value();
}

core::Value seconds_or_null(const std::optional<core::Seconds>& time) {
    return time ? core::Value(time->value) : core::Value();
}

// What Daly's formula says of this job; nothing where one of its assumptions does not hold.
std::optional<core::Seconds> closed_form(const JobModel& model) {
    if (!model.failures || model.failures->law != Law::exponential || model.spot || model.elastic ||
        model.evaluating || model.jitter || !model.checkpointing || model.checkpointing->beside.value > 0)
        return std::nullopt;
    const core::Seconds rest = model.acquire + model.preparation() + model.upload + model.release;
    return rest +
           expected_time({model.step * double(model.steps), model.step * double(model.checkpointing->every),
                          model.checkpointing->blocking, *model.cluster_mtbf(), model.failures->restart,
                          model.failures->detect});
}

// The parts of a run that nothing interrupts, in order; they add up to its total.
std::vector<std::pair<const char*, core::Seconds>> parts_of(const JobModel& model) {
    const TrainingAxis axis = model.axis(model.step);
    return {{"acquire", model.acquire},
            {"image", model.image},
            {"data", model.data},
            {"warm_up", model.warm_up},
            {"steps", model.step * double(model.steps)},
            {"evaluation", axis.evaluation_time(model.steps)},
            {"checkpoints", axis.checkpoint_time(model.steps)},
            {"upload", model.upload},
            {"release", model.release}};
}

core::Value bill_value(const JobAnswer& answer) {
    const JobModel& model = answer.job.model;
    const JobRun& run = answer.median;
    core::Value bill;
    bill["nodes"] = model.held_nodes();
    bill["usd_per_node_hour"] =
        model.prices.node ? core::Value(core::to_dollars_per_hour(*model.prices.node)) : core::Value();
    bill["billed_s_per_node"] = run.billed.value;
    bill["idle_s_per_node"] = model.keep_alive.value;
    bill["usd_storage"] = (model.prices.storage * run.total).value;
    bill["usd"] = run.usd ? core::Value(run.usd->value) : core::Value();
    return bill;
}

std::string row(const char* name, const Quantiles& q) {
    return fmt::format("  {:<14}{:>14}{:>14}{:>14}{:>14}\n", name, core::with_thousands(q.mean),
                       core::with_thousands(q.p10), core::with_thousands(q.p50), core::with_thousands(q.p90));
}

std::string distribution_text(const JobAnswer& answer) {
    const JobDistribution& d = answer.distribution;
    std::string text = fmt::format("  {:<14}{:>14}{:>14}{:>14}{:>14}\n", "", "mean", "p10", "p50", "p90");
    text += row("hours", d.hours);
    if (d.usd) text += row("USD", *d.usd);
    else text += "  USD             unknown: no price\n";
    text += row("goodput", d.goodput);
    text += row("interruptions", d.interruptions);
    text += fmt::format("  mean hours of a run: {} lost, {} detecting, {} restarting, {} waiting",
                        core::with_thousands(d.lost_hours), core::with_thousands(d.detecting_hours),
                        core::with_thousands(d.restarting_hours), core::with_thousands(d.waiting_hours));
    if (answer.job.model.elastic)
        text += fmt::format(", {} with fewer nodes", core::with_thousands(d.reduced_hours));
    text += '\n';
    if (const auto expected = closed_form(answer.job.model))
        text += fmt::format(
            "  Daly's formula: {:.2f} hours; the mean above is within {:.2f} of its own ({} runs)\n",
            hours(*expected), d.hours_mean_error, d.runs);
    const auto chance = [&](const char* what, const std::optional<double>& share) {
        if (share) text += fmt::format("  {}: {:.1f} % of the runs\n", what, 100 * *share);
    };
    chance("finished in time", d.chances.in_time);
    chance("within the budget", d.chances.within_budget);
    chance("both", d.chances.both);
    return text;
}

std::string interval_text(const JobAnswer& answer) {
    if (!answer.best) return {};
    const BestInterval& best = *answer.best;
    const auto in_words = [](const std::optional<core::Seconds>& time) {
        return time ? core::format(*time) : std::string("not of this law");
    };
    return fmt::format(
        "\nCheckpoints every {} ({} of computing); best by search: every {} ({}), {:.2f} instead of {:.2f} "
        "hours\n  Young: {}, Daly: {}\n",
        answer.job.model.checkpointing->every,
        core::format(answer.job.model.step * double(answer.job.model.checkpointing->every)), best.every,
        core::format(best.interval), best.hours_mean, best.hours_mean_given, in_words(best.young),
        in_words(best.daly));
}

}  // namespace

core::Value to_value(const JobAnswer& answer) {
    const JobModel& model = answer.job.model;
    const JobDistribution& d = answer.distribution;
    core::Value value;
    put(value, "hours", d.hours);
    put(value, "usd", d.usd);
    put(value, "goodput", d.goodput);
    put(value, "interruptions", d.interruptions);
    value["failures_mean"] = d.failures_mean;
    value["reclaims_mean"] = d.reclaims_mean;
    value["hours_mean_error"] = d.hours_mean_error;
    value["step_time_s"] = model.step.value;
    value["steps"] = model.steps;
    value["nodes"] = model.nodes;
    value["runs"] = d.runs;
    value["undisturbed_hours"] = hours(model.undisturbed());
    value["closed_form_hours"] = optional_value([&]() -> std::optional<double> {
        const auto expected = closed_form(model);
        return expected ? std::optional(hours(*expected)) : std::nullopt;
    }());
    core::Value parts = core::Value::table();
    for (const auto& [name, time] : parts_of(model)) parts[name] = time.value;
    value["parts_s"] = std::move(parts);
    core::Value losses = core::Value::table();
    losses["lost"] = d.lost_hours;
    losses["detecting"] = d.detecting_hours;
    losses["restarting"] = d.restarting_hours;
    losses["waiting"] = d.waiting_hours;
    value["disturbance_hours"] = std::move(losses);
    value["reduced_hours"] = d.reduced_hours;
    value["checkpoint_bytes"] = answer.job.checkpoint_bytes.value;
    value["probability_in_time"] = optional_value(d.chances.in_time);
    value["probability_within_budget"] = optional_value(d.chances.within_budget);
    value["probability_both"] = optional_value(d.chances.both);
    value["bill"] = bill_value(answer);
    if (answer.best) {
        core::Value best = core::Value::table();
        best["every_steps"] = answer.best->every;
        best["interval_s"] = answer.best->interval.value;
        best["hours_mean"] = answer.best->hours_mean;
        best["hours_mean_given"] = answer.best->hours_mean_given;
        best["young_s"] = seconds_or_null(answer.best->young);
        best["daly_s"] = seconds_or_null(answer.best->daly);
        value["best_checkpoint_interval"] = std::move(best);
    }
    if (answer.job.stragglers) {
        core::Value places = core::Value::array();
        for (const StragglerPlace& place : answer.job.stragglers->places) {
            core::Value entry = core::Value::table();
            entry["rank"] = place.rank;
            entry["pipeline_rank"] = place.pipeline;
            entry["step_ratio"] = place.ratio;
            places.append(std::move(entry));
        }
        value["stragglers"] = std::move(places);
    }
    value["assumptions"] = model.assumptions;
    return value;
}

std::string text_of(const JobAnswer& answer, const std::string& question) {
    const JobModel& model = answer.job.model;
    std::string text;
    if (!question.empty()) text += question + "\n\n";
    text += fmt::format("Job of {} steps of {} on {} nodes", core::with_thousands(model.steps),
                        core::format(model.step), core::with_thousands(model.nodes));
    if (const auto mtbf = model.cluster_mtbf())
        text += fmt::format("; something interrupts them every {} on average", core::format(*mtbf));
    text += fmt::format("\n\nWithout interruptions: {} hours\n",
                        core::with_thousands(hours(model.undisturbed())));
    for (const auto& [name, time] : parts_of(model))
        if (time.value > 0) text += fmt::format("  {:<14}{:>14}\n", name, core::format(time));
    text += fmt::format("\nWith them, {} runs:\n", answer.distribution.runs);
    text += distribution_text(answer);
    text += interval_text(answer);
    if (answer.job.stragglers) {
        text += "\nStragglers: the step is as many times longer with the slow one in\n";
        for (const StragglerPlace& place : answer.job.stragglers->places)
            text += fmt::format("  pipeline rank {:<4} {:.4f}\n", place.pipeline, place.ratio);
    }
    text +=
        fmt::format("\nThe median run ({} interruptions)\n", answer.median.failures + answer.median.reclaims);
    text += gantt_text(model, answer.stretches);
    if (answer.median.usd) {
        text += fmt::format(
            "  bill: {} nodes x {} s x {:.4g} USD/h", core::with_thousands(model.held_nodes()),
            core::with_thousands(answer.median.billed.value), core::to_dollars_per_hour(*model.prices.node));
        if (model.keep_alive.value > 0)
            text += fmt::format(" + {} kept alive idle", core::format(model.keep_alive));
        if (model.prices.storage.value > 0)
            text += fmt::format(" + {} USD of storage",
                                core::with_thousands((model.prices.storage * answer.median.total).value));
        text += fmt::format(" = {} USD\n", core::with_thousands(answer.median.usd->value));
    }
    if (!model.assumptions.empty()) text += "\nAssumptions\n";
    for (const std::string& line : model.assumptions) text += "  " + line + '\n';
    return text;
}

}  // namespace jobs
