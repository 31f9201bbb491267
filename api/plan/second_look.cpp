#include "api/plan/second_look.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "planner/explain.h"
#include "planner/near_ties.h"

namespace api {

namespace {

constexpr double tolerance = 0.02;  // less of a difference in the objective is none to a person
// A plan that runs out more often than this is not what one would start without asking.
constexpr double acceptable_chance = 0.1;

double change_pct(double value, double of) { return of > 0 ? 100 * (value / of - 1) : 0; }

// All there is on the device, also what a margin keeps free.
core::Bytes memory_of(const planner::RankedPlan& plan, const Request& request) {
    return plan.evaluation.available_memory / (1 - request.memory_margin);
}

// What near plans are told with.
struct Given {
    const Request& request;
    const model::ModelGraph& graph;
    const planner::SearchResult& result;
    const std::vector<planner::Target>& targets;
    const std::vector<sim::PredictionIntervals>& intervals;

    bool is_of_one_type(const planner::RankedPlan& plan) const {
        return targets[plan.candidate].cluster.instance.name ==
               targets[result.plans.front().candidate].cluster.instance.name;
    }
};

NearPlan near_plan(const planner::RankedPlan& plan, std::vector<std::string> merits, const Given& given) {
    NearPlan near{.merits = std::move(merits), .plan = plan};
    near.plan.evaluation =
        planner::with_breakdown(plan, given.graph, given.targets, given.request.search.constants);
    near.worse_pct = change_pct(plan.value, given.result.plans.front().value);
    sim::apply_site_effects(near.plan.evaluation, given.request.posterior());
    // On the first's kind of machine with the error of its prediction, which is much the same.
    const sim::PredictionIntervals own =
        given.is_of_one_type(plan)
            ? given.intervals.front()
            : sim::intervals_of(near.plan.evaluation, given.graph, given.targets[plan.candidate].cluster,
                                plan.plan, given.request.posterior());
    near.chance_of_running_out =
        sim::chance_of_exceeding(memory_of(plan, given.request), plan.evaluation.peak_memory, own);
    return near;
}

// Of each plan over moves of the constants both ways, which are the same for all plans.
std::vector<double> regrets(const Given& given) {
    const std::vector<planner::RankedPlan>& plans = given.result.plans;
    if (!std::all_of(plans.begin(), plans.end(),
                     [&](const planner::RankedPlan& plan) { return given.is_of_one_type(plan); }))
        return {};
    std::vector<double> regrets(plans.size(), 0);
    std::size_t moves = given.intervals.front().moved.size();
    for (const sim::PredictionIntervals& each : given.intervals) moves = std::min(moves, each.moved.size());
    for (std::size_t m = 0; m < 2 * moves; ++m) {
        std::vector<double> steps;
        for (std::size_t i = 0; i < regrets.size(); ++i) {
            const double change = given.intervals[i].moved[m / 2];
            steps.push_back(plans[i].evaluation.step_time.value * std::exp(m % 2 == 0 ? change : -change));
        }
        const double least = *std::min_element(steps.begin(), steps.end());
        for (std::size_t i = 0; i < regrets.size(); ++i)
            regrets[i] += change_pct(steps[i], least) / double(2 * moves);
    }
    return regrets;
}

// Share of memory that a plan may take for its chance to be acceptable.
double safe_share(const sim::PredictionIntervals& intervals) {
    return std::sqrt(intervals.peak.low.value / intervals.peak.high.value);
}

// "41.2 s (+2.3 %), 35.0 GiB: TP8 PP4 DP4 ...", or of costs "0.35 USD a step (+2.3 %), 41.2 s, ..."
std::string line_of(const NearPlan& near, const planner::Target& target, bool is_cost, bool tells_target) {
    const std::string step = core::format(near.plan.evaluation.step_time);
    return fmt::format(
        "{} ({:+.1f} %){}, {}: {}{}", is_cost ? fmt::format("{:.4g} USD a step", near.plan.value) : step,
        near.worse_pct, is_cost ? ", " + step : "", core::format(near.plan.evaluation.peak_memory),
        planner::describe(near.plan.plan),
        tells_target ? fmt::format(" on {} x {}", target.cluster.nodes, target.cluster.instance.name) : "");
}

core::Value to_value(const NearPlan& near, const planner::Target& target) {
    core::Value value = core::Value::table();
    if (!near.merits.empty()) value["merits"] = near.merits;
    value["plan"] = planner::describe(near.plan.plan);
    value["target"] = target.cluster.instance.name;
    value["nodes"] = target.cluster.nodes;
    value["step_time_s"] = near.plan.evaluation.step_time.value;
    value["worse_pct"] = near.worse_pct;
    value["peak_memory_gib"] = core::to_gibibytes(near.plan.evaluation.peak_memory);
    value["chance_of_running_out"] = near.chance_of_running_out;
    return value;
}

}  // namespace

SecondLook second_look(const Request& request, const model::ModelGraph& graph,
                       const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                       const std::vector<sim::PredictionIntervals>& intervals) {
    const Given given{request, graph, result, targets, intervals};
    const sim::Posterior& posterior = request.posterior();
    SecondLook look;
    look.is_cost = request.search.objective == planner::Objective::cost;
    const planner::RankedPlan& best = result.plans.front();
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
        const planner::RankedPlan& plan = result.plans[i];
        look.chance_of_running_out.push_back(
            sim::chance_of_exceeding(memory_of(plan, request), plan.evaluation.peak_memory, intervals[i]));
        if (!given.is_of_one_type(plan)) continue;
        const double error =
            posterior.step.factor_80 * sim::difference_deviation(intervals[i], intervals.front(), posterior);
        const double worse =
            look.is_cost ? plan.value / best.value : plan.evaluation.step_time / best.evaluation.step_time;
        if (i > 0 && std::log(worse) > error) continue;
        look.same.push_back(i);
        if (i > 0) look.error_pct = std::max(look.error_pct, 100 * (std::exp(error) - 1));
    }
    look.memory = memory_of(best, request);
    look.regret_pct = regrets(given);
    if (request.search.objective == planner::Objective::memory || best.value <= 0) return look;
    const planner::NearTies& near = result.near_ties;
    for (planner::NearTie& tie : near.of(best, targets[best.candidate].cluster.nodes, tolerance))
        look.near_ties.push_back(near_plan(*tie.plan, std::move(tie.merits), given));
    if (look.chance_of_running_out.front() > acceptable_chance)
        if (const planner::RankedPlan* safer =
                near.within_memory(safe_share(intervals.front()) / (1 - request.memory_margin)))
            look.safer = near_plan(*safer, {}, given);
    look.advised_margin_pct =
        look.safer ? 100 * (1 - planner::memory_share(look.safer->plan) * (1 - request.memory_margin)) : 0;
    return look;
}

void add_to(core::Value& document, const SecondLook& look, const std::vector<planner::Target>& targets) {
    core::Value& plans = document["plans"];
    for (std::size_t i = 0; i < plans.items().size(); ++i) {
        core::Value& row = plans.items()[i];
        row["chance_of_running_out"] = look.chance_of_running_out[i];
        row["expected_regret_pct"] =
            look.regret_pct.empty() ? core::Value() : core::Value(look.regret_pct[i]);
        row["same_within_error"] = std::find(look.same.begin(), look.same.end(), i) != look.same.end();
    }
    core::Value ties = core::Value::array();
    for (const NearPlan& near : look.near_ties) ties.append(to_value(near, targets[near.plan.candidate]));
    document["near_ties"] = std::move(ties);
    core::Value risk = core::Value::table();
    risk["chance_of_running_out"] = look.chance_of_running_out.front();
    risk["is_recommended"] = look.chance_of_running_out.front() <= acceptable_chance;
    risk["safer"] = look.safer ? to_value(*look.safer, targets[look.safer->plan.candidate]) : core::Value();
    document["memory_risk"] = std::move(risk);
}

std::string text_of(const SecondLook& look, const planner::SearchResult& result,
                    const std::vector<planner::Target>& targets) {
    const planner::RankedPlan& best = result.plans.front();
    const bool has_targets = targets.size() > 1;
    const char* as_good = look.is_cost ? "cheap" : "fast";
    std::string text;
    if (look.same.size() > 1 && look.same.size() == result.plans.size())
        text += fmt::format("  all {} are as {} within the error of comparing predictions, up to {:.0f} %\n",
                            result.plans.size(), as_good, look.error_pct);
    else if (look.same.size() > 1) {
        std::string same;
        for (const std::size_t i : look.same)
            if (i > 0) same += (same.empty() ? "" : ", ") + std::to_string(i + 1);
        text += fmt::format("  as {} as 1 within the error of comparing predictions, up to {:.0f} %: {}\n",
                            as_good, look.error_pct, same);
    }
    if (!look.near_ties.empty()) {
        text += fmt::format("  within {:.0f} % of 1, of the plans simulated:\n", 100 * tolerance);
        for (const NearPlan& near : look.near_ties) {
            std::string merits;
            for (const std::string& merit : near.merits) merits += (merits.empty() ? "" : ", ") + merit;
            text += fmt::format("    {}: {}\n", merits,
                                line_of(near, targets[near.plan.candidate], look.is_cost, has_targets));
        }
    }
    const double chance = look.chance_of_running_out.front();
    if (chance <= acceptable_chance) return text;
    text += fmt::format(
        "  memory: 1 takes {} of {}; by the error of predictions it runs out in {:.0f} of 100 cases\n",
        core::format(best.evaluation.peak_memory), core::format(look.memory), 100 * chance);
    if (look.safer) {
        text += fmt::format(
            "    recommended, in {:.0f} of 100: {}\n    (--memory-margin {:.0f} searches such plans alone)\n",
            100 * look.safer->chance_of_running_out,
            line_of(*look.safer, targets[look.safer->plan.candidate], look.is_cost, has_targets),
            std::floor(look.advised_margin_pct));
    }
    return text;
}

}  // namespace api
