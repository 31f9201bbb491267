#include "api/plan/plan_command.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "api/offers/show_offers.h"
#include "api/options.h"
#include "api/plan/answer.h"
#include "api/plan/beside.h"
#include "api/plan/best_of_each.h"
#include "api/plan/certificate.h"
#include "api/plan/front.h"
#include "api/plan/no_plan.h"
#include "api/plan/question.h"
#include "api/report_page/report_page.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/search.h"

namespace api {

namespace {

// The same clusters, searched with every value of what the options keep plans to.
std::optional<CostOfLimits> cost_of_limits(const Request& request, const model::ModelGraph& graph,
                                           const std::vector<planner::Target>& targets,
                                           const planner::RankedPlan& best, core::Seconds& worked) {
    if (request.limits.is_empty()) return std::nullopt;
    core::Diagnostics unneeded;
    Request free = request;
    free.limits = {};
    const std::vector<planner::Target> all = targets_again(free, graph, targets);
    planner::SearchRequest search = search_beside(request, worked, {.least = 0.25});
    search.limits = {};
    planner::SearchResult result = planner::search_plans(graph, all, search, unneeded);
    worked += result.account.work;
    if (result.plans.empty()) return std::nullopt;
    CostOfLimits cost{std::move(result.plans.front()), 0, result.account.is_proven_optimal};
    cost.pct = 100 * (best.value - cost.best.value) / cost.best.value;
    return cost;
}

std::vector<OutputFile> files_of(const Answer& answer, const std::vector<std::string>& arguments) {
    const auto& [request, graph, targets] = answer.question;
    const planner::RankedPlan& best = answer.result.plans.front();
    std::vector<OutputFile> files;
    if (request.out_path)
        files.push_back({*request.out_path,
                         plan_text(request, graph, best, targets[best.candidate], *request.out_path),
                         "plan"});
    if (request.certificate_path)
        files.push_back({*request.certificate_path,
                         core::to_json(certificate_of(request, graph, answer.result, targets, arguments,
                                                      answer.intervals)) +
                             "\n",
                         "certificate, for smplan verify"});
    return files;
}

// Where no plan is found: the same search with more of its state on the hosts. False where that is not
// wanted, not run or does not fit either.
bool solve_on_hosts(Answer& answer, core::Seconds& worked) {
    auto& [request, graph, targets] = answer.question;
    std::vector<planner::Target> all = targets_on_hosts(request, graph, targets);
    if (all.empty()) return false;
    core::Diagnostics diagnostics;
    planner::SearchResult result = planner::search_plans(graph, all, request.search, diagnostics);
    worked += result.account.work;
    if (result.plans.empty()) return false;
    targets = std::move(all);
    const bool were_on_devices = request.state_places.front() == StatePlace::devices,
               are_all_there = result.plans.front().plan.keeps_parameters_on_hosts();
    request.assumptions.push_back(fmt::format(
        "no plan was found with {} on the devices: {}", were_on_devices ? "all state" : "parameters",
        are_all_there ? "parameters and optimizer are on the hosts (--parameter-offload)"
                      : "the optimizer is on the hosts (--optimizer-offload)"));
    // Of questions beside this one.
    request.state_places.insert(request.state_places.end(), request.places_instead.begin(),
                                request.places_instead.end());
    answer.result = std::move(result);
    answer.diagnostics = std::move(diagnostics);
    return true;
}

Answer solve(Question question) {
    Answer answer{.question = std::move(question)};
    auto& [request, graph, targets] = answer.question;
    // What is found first hangs on how many are kept: not on how many are shown.
    request.search.keep = std::max(request.rows, planner::SearchRequest().keep);
    answer.result = planner::search_plans(graph, targets, request.search, answer.diagnostics);
    planner::SearchResult& result = answer.result;
    if (result.plans.empty() && request.search.is_stopped && request.search.is_stopped()) return answer;
    core::Seconds worked = result.account.work;
    if (result.plans.empty() && !solve_on_hosts(answer, worked)) {
        answer.diagnostics = why_no_plan(request, graph, targets, result, answer.diagnostics);
        return answer;
    }
    if (result.plans.size() > request.rows) result.plans.resize(request.rows);
    const planner::RankedPlan& best = result.plans.front();
    answer.limits = cost_of_limits(request, graph, targets, best, worked);
    answer.beside.fewer = fewer_nodes(request, graph, targets, best, worked);
    answer.beside.on_hosts = faster_on_hosts(request, graph, targets, best, worked);
    answer.intervals = judge(result, graph, targets, request.posterior(), request.search.threads);
    for (const planner::RankedPlan& ranked : result.plans)
        if (ranked.order) request.assumptions.push_back(*ranked.order);
    if (request.search.searches_orders)
        request.assumptions.emplace_back("bounds, and what is proven by them, are of registered schedules");
    return answer;
}

Reply reply_of(const Answer& answer) {
    const auto& [request, graph, targets] = answer.question;
    if (answer.result.plans.empty()) return refusal(answer.diagnostics, Outcome::no_plan);
    const SecondLook look = second_look(request, graph, answer.result, targets, answer.intervals);
    Reply reply{
        .document = document_of(request, graph, answer.result, targets, answer.intervals, look, answer.limits,
                                answer.beside),
        .text = text_of(request, graph, answer.result, targets, answer.intervals, look, answer.beside),
        .diagnostics = answer.diagnostics};
    if (answer.limits) reply.text += "  " + text_of(*answer.limits, request.limits) + '\n';
    return reply;
}

// Options that have no meaning beside one another.
void check_together(Options& options, const std::vector<Runner>& runners) {
    if (runners.size() > 1 && options.has("--certificate"))
        options.error("--certificate", "a certificate is of one search, and --for names several tools",
                      "name one of them");
    if (wants_offers(options) && options.has("--html"))
        options.error("--html", "a report is of plans, and expected cost and time are of offers",
                      "--picture FILE.svg draws offers");
    if (wants_offers(options) && runners.size() > 1)
        options.error("--for", "expected cost and time are of one tool's plans, and --for names several",
                      "name one of them");
    if (options.has("--pareto") && !wants_offers(options))
        for (const char* name : {"--objective", "--top", "--out", "--certificate"})
            if (options.has(name))
                options.error(name,
                              fmt::format("{} is of one best plan, and --pareto asks for a front", name),
                              "leave one of them out");
    if (runners.size() > 1 && options.has("--pareto"))
        options.error("--pareto", "a front is of one tool's plans, and --for names several",
                      "name one of them");
}

struct Asked {
    std::vector<Question> questions = {};  // one for each tool that plans are to be for
    std::optional<OfferRequest> offers = {};
    bool asks_for_front = false;
};

// No question where there are errors.
Asked read_questions(const std::vector<std::string>& arguments, const Watch& watch,
                     core::Diagnostics& diagnostics) {
    Options options(arguments, plan_options(), diagnostics);
    Asked all{.asks_for_front = options.has("--pareto")};
    const std::vector<Runner> runners = read_runners(options);
    all.offers = read_offer_request(options, diagnostics);
    check_together(options, runners);
    std::vector<std::optional<Runner>> asked(runners.begin(), runners.end());
    if (asked.empty()) asked.emplace_back();
    for (const std::optional<Runner>& runner : asked) {
        std::optional<Question> question = read_question(options, runner, diagnostics, asked.size());
        if (!question || diagnostics.has_errors()) return {};
        question->request.search.is_stopped = watch.is_stopped;
        question->request.width = watch.width;
        if (watch.progress)
            question->request.search.progress = [report = watch.progress](const planner::SearchProgress& at) {
                report({at.looked_at, at.space, at.best_value, at.lower_bound, at.seconds.value});
            };
        all.questions.push_back(std::move(*question));
    }
    return all;
}

// The answer as a page, where one is asked for.
void add_page(const Question& question, Reply& reply) {
    if (!question.request.html_path || reply.document.is_null()) return;
    reply.files.push_back(
        report_file(*question.request.html_path, {.kind = ReportKind::plans,
                                                  .title = headline(question.request, question.graph),
                                                  .answer = reply.document,
                                                  .text = reply.text}));
}

// The rows of the answer as a table for other programs, where one is asked for.
void add_csv(const Question& question, Reply& reply) {
    if (!question.request.csv_path || reply.document.is_null()) return;
    const core::Value* rows = reply.document.find("front");
    if (!rows) rows = reply.document.find("plans");
    if (rows) reply.files.push_back({*question.request.csv_path, csv_of_rows(*rows), "plans"});
}

// What was said before the searches comes first.
void put_first(core::Diagnostics diagnostics, Reply& reply) {
    diagnostics.append(reply.diagnostics);
    reply.diagnostics = std::move(diagnostics);
}

}  // namespace

PlanReply plan(const std::vector<std::string>& arguments, const Watch& watch) {
    core::Diagnostics diagnostics;
    Asked asked = read_questions(arguments, watch, diagnostics);
    std::vector<Question>& questions = asked.questions;
    if (questions.empty()) return {refusal(std::move(diagnostics))};
    PlanReply reply;
    if (asked.offers) {
        static_cast<Reply&>(reply) = offers_reply(questions.front(), *asked.offers);
    } else if (asked.asks_for_front) {
        static_cast<Reply&>(reply) = front_reply(questions.front());
        add_page(questions.front(), reply);
        add_csv(questions.front(), reply);
    } else {
        std::vector<Answer> answers;
        for (Question& question : questions) answers.push_back(solve(std::move(question)));
        static_cast<Reply&>(reply) = answers.size() == 1 ? reply_of(answers.front()) : reply_of_each(answers);
        const Answer& best = answers[best_of(answers)];
        if (reply.outcome == Outcome::good) {
            reply.files = files_of(best, arguments);
            reply.plan_files = plan_files_of(answers);
            add_page(best.question, reply);
            add_csv(best.question, reply);
        }
    }
    put_first(std::move(diagnostics), reply);
    reply.is_stopped = watch.is_stopped && watch.is_stopped();
    if (reply.is_stopped && reply.outcome == Outcome::no_plan) throw Stopped{};  // it may have found one yet
    return reply;
}

}  // namespace api
