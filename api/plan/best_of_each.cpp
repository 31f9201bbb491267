#include "api/plan/best_of_each.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "core/document.h"

namespace api {

namespace {

std::string reason_of(const core::Diagnostics& diagnostics) {
    for (const core::Diagnostic& problem : diagnostics.entries())
        if (problem.severity == core::Severity::error) return problem.message;
    return "no plan fits";
}

// Best first; those without a plan last.
std::vector<std::size_t> by_value(const std::vector<Answer>& answers) {
    std::vector<std::size_t> order(answers.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const std::vector<planner::RankedPlan>&left = answers[a].result.plans,
              &right = answers[b].result.plans;
        if (left.empty() || right.empty()) return !left.empty() && right.empty();
        return left.front().value < right.front().value;
    });
    return order;
}

core::Value row_of_best(const Answer& answer, std::size_t rank) {
    const planner::RankedPlan& best = answer.result.plans.front();
    core::Value row = row_of(best, rank, answer.question.targets[best.candidate], answer.intervals.front());
    row["for"] = answer.question.request.runner->name;
    return row;
}

core::Value document_of_all(const std::vector<Answer>& answers) {
    const std::vector<std::size_t> order = by_value(answers);
    const Answer& first = answers[order.front()];
    core::Value document = core::Value::table();
    document["model"] = first.question.graph.name;
    document["global_batch"] = first.question.request.search.global_batch;
    core::Value plans = core::Value::array(), each = core::Value::array();
    for (const std::size_t i : order) {
        const Answer& answer = answers[i];
        if (!answer.result.plans.empty()) plans.append(row_of_best(answer, plans.items().size() + 1));
        core::Value one = core::Value::table();
        one["name"] = answer.question.request.runner->name;
        one["framework"] = answer.question.request.runner->framework;
        one["search"] = account_of(answer.result.account, answer.question.request.search.objective);
        one["assumptions"] = answer.question.request.assumptions;
        if (answer.result.plans.empty()) one["reason"] = reason_of(answer.diagnostics);
        if (answer.limits) one["limits"] = to_value(*answer.limits, answer.question.request.limits);
        each.append(std::move(one));
    }
    document["plans"] = std::move(plans);
    document["for"] = std::move(each);
    document["search"] = account_of(first.result.account, first.question.request.search.objective);
    document["assumptions"] = first.question.request.assumptions;
    if (first.question.request.out_path) document["out"] = *first.question.request.out_path;
    return document;
}

std::string text_of_all(const std::vector<Answer>& answers) {
    const std::vector<std::size_t> order = by_value(answers);
    const Answer& first = answers[order.front()];
    std::string out = headline(first.question.request, first.question.graph);
    std::vector<std::string> assumed;
    for (const Answer& answer : answers)
        for (const std::string& line : answer.question.request.assumptions)
            if (std::find(assumed.begin(), assumed.end(), line) == assumed.end()) assumed.push_back(line);
    for (const std::string& line : assumed) out += "  assumed: " + line + '\n';
    std::vector<TableRow> rows;
    for (const std::size_t i : order)
        if (!answers[i].result.plans.empty()) {
            const planner::RankedPlan& best = answers[i].result.plans.front();
            rows.push_back({"for", answers[i].question.request.runner->name, &best,
                            &answers[i].question.targets[best.candidate].cluster});
        }
    out += table_of(rows, first.question.request) + '\n';
    if (rows.size() > 1)
        out += fmt::format("  best: {}, {:.1f} % better than {}\n", rows[0].label,
                           100 * (rows[1].ranked->value - rows[0].ranked->value) / rows[1].ranked->value,
                           rows[1].label);
    for (const std::size_t i : order) {
        const Answer& answer = answers[i];
        const std::string& name = answer.question.request.runner->name;
        const planner::SearchAccount& account = answer.result.account;
        if (answer.result.plans.empty())
            out += fmt::format("  {}: no plan: {}\n", name, reason_of(answer.diagnostics));
        else if (account.is_proven_optimal)
            out += fmt::format("  {}: the best of {} plans under this model\n", name, account.space);
        else out += fmt::format("  {}: the best found of {} plans, not proven\n", name, account.space);
    }
    return out;
}

}  // namespace

std::size_t best_of(const std::vector<Answer>& answers) { return by_value(answers).front(); }

Reply reply_of_each(const std::vector<Answer>& answers) {
    if (answers[best_of(answers)].result.plans.empty()) {
        core::Diagnostics reasons;
        for (const Answer& answer : answers) reasons.append(answer.diagnostics);
        return refusal(std::move(reasons), Outcome::no_plan);
    }
    return {.document = document_of_all(answers), .text = text_of_all(answers)};
}

std::vector<std::string> plan_files_of(const std::vector<Answer>& answers) {
    std::vector<std::string> files;
    const auto add = [&](const Answer& answer, const planner::RankedPlan& ranked) {
        const auto& [request, graph, targets] = answer.question;
        files.push_back(plan_text(request, graph, ranked, targets[ranked.candidate],
                                  request.out_path.value_or("plan.toml")));
    };
    if (answers.size() == 1) {
        for (const planner::RankedPlan& ranked : answers.front().result.plans) add(answers.front(), ranked);
        return files;
    }
    for (const std::size_t i : by_value(answers))
        if (!answers[i].result.plans.empty()) add(answers[i], answers[i].result.plans.front());
    return files;
}

}  // namespace api
