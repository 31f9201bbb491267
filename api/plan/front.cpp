#include "api/plan/front.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "api/plan/no_plan.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/explain.h"
#include "planner/pareto.h"

namespace api {

namespace {

// Less of a difference is none to a person.
constexpr double tolerance = 0.02;

bool is_one_cluster(const planner::Target& a, const planner::Target& b) {
    return a.cluster.instance.name == b.cluster.instance.name && a.cluster.nodes == b.cluster.nodes;
}

struct Front {
    planner::SearchResult rows;  // as plans
    std::size_t simulated = 0, searches = 0, proven = 0;
};

Front front_of(const Question& question, core::Diagnostics& diagnostics) {
    const auto& [request, graph, targets] = question;
    const std::vector<std::vector<std::size_t>> clusters = by_cluster(targets);
    const std::vector<planner::Objective> objectives = {planner::Objective::speed,
                                                        planner::Objective::memory};
    Front front;
    std::vector<planner::RankedPlan> plans;
    for (const std::vector<std::size_t>& members : clusters) {
        std::vector<planner::Target> some;
        for (const std::size_t i : members) some.push_back(targets[i]);
        for (const planner::Objective objective : objectives) {
            planner::SearchRequest search = request.search;
            search.objective = objective;
            search.keep = 1;
            search.keeps_front = true;
            search.searches_orders = false;
            search.unsearched.clear();
            search.time_limit = *search.time_limit / double(clusters.size() * objectives.size());
            planner::SearchResult result = planner::search_plans(graph, some, search, diagnostics);
            front.simulated += result.account.evaluated;
            ++front.searches;
            if (result.account.is_proven_optimal) ++front.proven;
            for (planner::RankedPlan& plan : result.front) {
                plan.candidate = members[plan.candidate];
                plan.bound_by = planner::bound_by(plan.evaluation);
                planner::add_to_front(plans, plan);
            }
            if (objective == planner::Objective::speed && result.plans.empty() && result.shortfall)
                front.rows.shortfall = result.shortfall;
            front.rows.account = result.account;
        }
    }
    front.rows.plans = planner::told_apart(std::move(plans), targets, tolerance);
    return front;
}

core::Value document_of(const Question& question, const Front& front,
                        const std::vector<sim::PredictionIntervals>& intervals) {
    const auto& [request, graph, targets] = question;
    core::Value document = core::Value::table();
    document["model"] = graph.name;
    document["global_batch"] = request.search.global_batch;
    core::Value rows = core::Value::array();
    for (std::size_t i = 0; i < front.rows.plans.size(); ++i) {
        const planner::RankedPlan& plan = front.rows.plans[i];
        core::Value row = row_of(plan, i + 1, targets[plan.candidate], intervals[i]);
        std::erase_if(row.members(), [](const auto& member) { return member.first == "why"; });
        row["usd_per_step"] =
            plan.evaluation.rate.value > 0 ? core::Value(planner::cost_of_step(plan)) : core::Value();
        rows.append(std::move(row));
    }
    document["front"] = std::move(rows);
    document["simulated"] = front.simulated;
    document["searches"] = front.searches;
    document["proven"] = front.proven;
    document["assumptions"] = request.assumptions;
    return document;
}

}  // namespace

std::vector<std::vector<std::size_t>> by_cluster(const std::vector<planner::Target>& targets) {
    std::vector<std::vector<std::size_t>> clusters;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const auto same = std::find_if(clusters.begin(), clusters.end(), [&](const auto& cluster) {
            return is_one_cluster(targets[cluster.front()], targets[i]);
        });
        if (same != clusters.end()) same->push_back(i);
        else clusters.push_back({i});
    }
    return clusters;
}

Reply front_reply(const Question& question) {
    const auto& [request, graph, targets] = question;
    core::Diagnostics diagnostics;
    Front front = front_of(question, diagnostics);
    if (front.rows.plans.empty())
        return refusal(why_no_plan(request, graph, targets, front.rows, diagnostics), Outcome::no_plan);
    const std::vector<sim::PredictionIntervals> intervals =
        judge(front.rows, graph, targets, request.posterior(), request.search.threads);
    Reply reply{.document = document_of(question, front, intervals), .text = headline(request, graph)};
    for (const std::string& line : request.assumptions) reply.text += "  assumed: " + line + '\n';
    std::vector<TableRow> rows;
    for (const planner::RankedPlan& plan : front.rows.plans)
        rows.push_back({"#", std::to_string(rows.size() + 1), &plan, &targets[plan.candidate].cluster});
    reply.text += table_of(rows, request);
    reply.text += fmt::format(
        "\n  the front of step time, cost and memory of {} plans simulated; every cluster was searched for "
        "speed and for memory ({} of {} searches to the end)\n  rows within {:.0f} % of another in all three "
        "are left out\n",
        front.simulated, front.proven, front.searches, 100 * tolerance);
    return reply;
}

}  // namespace api
