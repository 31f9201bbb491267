#include "apps/smplan/why_not/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "api/output.h"
#include "api/plan/answer.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "model/model_graph.h"
#include "planner/explain.h"

namespace apps {

namespace {

std::string text_of(const core::Value& value) {
    if (value.is_null()) return "-";
    if (value.is_string()) return value.string();
    return api::json_of(value);
}

std::string fields_of(const planner::PlanChange& change) {
    std::string text;
    for (const sim::Difference& one : change.fields) text += (text.empty() ? "" : " + ") + one.key;
    return text;
}

std::string in_words(const planner::PlanChange& change) {
    std::string text;
    for (const sim::Difference& one : change.fields)
        text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", one.key, text_of(one.from),
                            text_of(one.to));
    return text;
}

std::string memory_text(const planner::MissingMemory& missing) {
    const core::Bytes more = missing.needed - missing.available;
    if (!missing.pipeline_rank)
        return fmt::format("{:.1f} GiB too much in a node's host: {} needed, {} there\n",
                           core::to_gibibytes(more), core::format(missing.needed),
                           core::format(missing.available));
    std::string text = fmt::format("{:.1f} GiB too much on pipeline rank {}: {} needed, {} available;",
                                   core::to_gibibytes(more), *missing.pipeline_rank,
                                   core::format(missing.needed), core::format(missing.available));
    for (const auto& [what, bytes] : missing.held)
        if (bytes.value > 0)
            text += fmt::format("{} {} {}", &what == &missing.held.front().first ? "" : ",", what,
                                core::format(bytes));
    return text + "\n";
}

std::string verdict_text(const planner::WhyNot& why) {
    const double pct = std::abs(why.difference_pct);
    switch (why.verdict) {
        case planner::Verdict::does_not_fit:
            return "  it does not fit: " + memory_text(*planner::missing_memory(why.plan));
        case planner::Verdict::slower:
            return fmt::format(
                "  it is slower by {:.1f} %, more than the error of the difference ({:.1f} %, 80 %)\n", pct,
                why.error_pct);
        case planner::Verdict::equal:
            if (why.changes.empty() || pct == 0) return "  equal: it is as fast as the best plan\n";
            return fmt::format(
                "  equal within the error: it is {} by {:.1f} %, and the difference has an error of {:.1f} "
                "% (80 %)\n",
                why.difference_pct > 0 ? "slower" : "faster", pct, why.error_pct);
        case planner::Verdict::faster:
            return fmt::format(
                "  it is faster by {:.1f} % than the best plan found: it lies outside of what is searched, "
                "or "
                "the search was cut short\n",
                pct);
    }
    throw core::InternalError("broken promise: every verdict has its sentence");
}

std::string changes_text(const planner::WhyNot& why) {
    if (why.changes.empty()) return "";
    std::string text = fmt::format("\n  {:>11}  {:>11}  {:>10}  change\n", "share", "alone", "peak");
    for (const planner::PlanChange& change : why.changes) {
        const bool is_slower = change.share.value > 0;
        text += fmt::format("  {:>11}  {:>11}  {:>10}  {}{}\n",
                            (is_slower ? "+" : "") + core::format(change.share),
                            change.step_time ? core::format(*change.step_time) : "-",
                            change.step_time ? core::format(change.peak_memory) : "-", in_words(change),
                            change.fits ? "" : " (does not fit)");
    }
    text +=
        fmt::format("  {:>11}  in all: each share is the mean over {} orders of changing one by one\n",
                    core::format(why.best.step_time - why.plan.step_time), why.is_exact ? "all" : "sampled");
    if (!why.decisive) return text + "  no single change is faster and fits\n";
    const planner::PlanChange& change = why.changes[*why.decisive];
    return text + fmt::format("  decisive: {}: {} a step by itself{}\n", in_words(change),
                              core::format(*change.step_time),
                              why.verdict == planner::Verdict::does_not_fit ? ", and it fits" : "");
}

core::Value fields_value(const planner::PlanChange& change, bool is_from) {
    if (change.fields.size() == 1) return is_from ? change.fields.front().from : change.fields.front().to;
    core::Value values = core::Value::table();
    for (const sim::Difference& one : change.fields) values[one.key] = is_from ? one.from : one.to;
    return values;
}

core::Value changes_value(const planner::WhyNot& why) {
    core::Value changes = core::Value::array();
    for (const planner::PlanChange& change : why.changes) {
        core::Value one = core::Value::table();
        one["field"] = fields_of(change);
        one["from"] = fields_value(change, true);
        one["to"] = fields_value(change, false);
        one["step_time_s"] = change.step_time ? core::Value(change.step_time->value) : core::Value();
        one["share_s"] = change.share.value;
        one["fits"] = change.step_time ? core::Value(change.fits) : core::Value();
        one["peak_memory_gib"] =
            change.step_time ? core::Value(core::to_gibibytes(change.peak_memory)) : core::Value();
        changes.append(std::move(one));
    }
    return changes;
}

core::Value memory_value(const planner::MissingMemory& missing) {
    core::Value value = core::Value::table();
    value["pipeline_rank"] =
        missing.pipeline_rank ? core::Value(*missing.pipeline_rank) : core::Value();  // null: the host
    value["needed_gib"] = core::to_gibibytes(missing.needed);
    value["available_gib"] = core::to_gibibytes(missing.available);
    value["missing_gib"] = core::to_gibibytes(missing.needed - missing.available);
    core::Value held = core::Value::table();
    for (const auto& [what, bytes] : missing.held) held[what] = core::to_gibibytes(bytes);
    value["held_gib"] = std::move(held);
    return value;
}

core::Value plan_value(const planner::RankedPlan& plan, const planner::Target& target,
                       const sim::PredictionIntervals& intervals) {
    core::Value row = api::row_of(plan, 1, target, intervals);
    std::erase_if(row.members(),
                  [](const auto& member) { return member.first == "rank" || member.first == "why"; });
    row["fits"] = plan.evaluation.fits;
    return row;
}

std::string verdict_word(const WhyNotAnswer& answer) {
    if (answer.why) return std::string(planner::name_of(answer.why->verdict));
    if (!answer.plan) return "refused";
    return answer.plan->evaluation.fits ? "no other plan" : "does not fit";
}

}  // namespace

std::string text_of(const WhyNotAnswer& answer, const model::ModelGraph& graph) {
    const cluster::Cluster& cluster = answer.target.cluster;
    std::string text = fmt::format("{} on {} x {}, global batch {}\n", graph.name, cluster.nodes,
                                   cluster.instance.name, answer.global_batch);
    const auto line = [&](const std::string& name, const planner::RankedPlan& plan,
                          const sim::PredictionIntervals& intervals) {
        text += fmt::format("  {}: {}\n    {} a step (80 %: {} to {}), {} of {}\n", name,
                            planner::describe(plan.plan), core::format(plan.evaluation.step_time),
                            core::format(intervals.step.low), core::format(intervals.step.high),
                            core::format(plan.evaluation.peak_memory),
                            core::format(plan.evaluation.available_memory));
    };
    if (answer.plan) line(answer.plan_name, *answer.plan, *answer.plan_intervals);
    else text += fmt::format("  {} is refused: see the errors\n", answer.plan_name);
    const std::string of_whom = answer.runner.empty() ? "" : " for " + answer.runner;
    if (answer.best)
        line(fmt::format("best of {} plans{}{}", answer.account.space, of_whom,
                         answer.account.is_proven_optimal ? "" : " (not proven)"),
             *answer.best, *answer.best_intervals);
    else text += fmt::format("  no plan of the {} searched{} fits\n", answer.account.space, of_whom);
    if (answer.why) return text + verdict_text(*answer.why) + changes_text(*answer.why);
    if (answer.plan)
        if (const auto missing = planner::missing_memory(answer.plan->evaluation))
            text += "  it does not fit: " + memory_text(*missing);
    return text;
}

core::Value document_of(const WhyNotAnswer& answer, const model::ModelGraph& graph,
                        const core::Diagnostics& refused) {
    core::Value document = core::Value::table();
    document["model"] = graph.name;
    document["global_batch"] = answer.global_batch;
    document["verdict"] = verdict_word(answer);
    document["plan"] =
        answer.plan ? plan_value(*answer.plan, answer.target, *answer.plan_intervals) : core::Value();
    document["best"] =
        answer.best ? plan_value(*answer.best, answer.target, *answer.best_intervals) : core::Value();
    if (!answer.runner.empty()) document["for"] = answer.runner;
    if (!answer.plan) {
        const core::Value told = core::to_value(refused);
        if (const core::Value* errors = told.find("errors")) document["errors"] = *errors;
    }
    if (answer.plan)
        if (const auto missing = planner::missing_memory(answer.plan->evaluation))
            document["missing_memory"] = memory_value(*missing);
    if (answer.why) {
        const planner::WhyNot& why = *answer.why;
        document["difference_pct"] = why.difference_pct;
        document["difference_error_pct_80"] = why.error_pct;
        document["difference_s"] = (why.best.step_time - why.plan.step_time).value;
        document["changes"] = changes_value(why);
        document["exact"] = why.is_exact;
        document["decisive"] =
            why.decisive ? core::Value(fields_of(why.changes[*why.decisive])) : core::Value();
    }
    document["search"] = api::account_of(answer.account, planner::Objective::speed);
    return document;
}

}  // namespace apps
