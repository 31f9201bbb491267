#include "apps/smplan/smplan_plan.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smplan/offers/show_offers.h"
#include "apps/smplan/plan/answer.h"
#include "apps/smplan/plan/best_of_each.h"
#include "apps/smplan/plan/certificate.h"
#include "apps/smplan/plan/front.h"
#include "apps/smplan/plan/no_plan.h"
#include "apps/smplan/plan/question.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/search.h"

namespace apps {

const char* const plan_help =
    "Usage: smplan --target INSTANCE[,INSTANCE...] [--nodes N | --max-nodes N] [--model MODEL] [--seq-len S] "
    "[--global-batch B]\n"
    "              [--objective speed|memory|cost|time-to-train|expected-cost|expected-time]\n"
    "              [--tokens T] [--deadline H] [--budget USD] [--finish-by TIME] [--confidence PCT] "
    "[--purchase KIND[,KIND...]]\n"
    "              [--top K] [--threads T] [--time-limit S] [--calibration FILE] [--out plan.toml] [--json]\n"
    "       smplan partition --graph FILE ...      place a costed graph (smplan partition --help)\n"
    "       smplan order plan.toml ...             search the compute order of a plan (smplan order --help)\n"
    "       smplan export plan.toml --to TARGET    write a plan in another tool's words (smplan export "
    "--help)\n"
    "\n"
    "Looks at every legal plan (data x tensor x pipeline x virtual stages x schedule x sharding x "
    "recomputation x micro-batch, and\n"
    "offload where activations do not fit), rejects what cannot fit memory, simulates what its bounds do not "
    "exclude, and ranks the\n"
    "rest.\n"
    "\n"
    "  --target LIST        instance types (smsim hardware lists them), families (p4d), patterns ('p*') or "
    "all\n"
    "  --nodes N            exactly N nodes; without it and --max-nodes the smallest power of two on which "
    "the model fits\n"
    "  --max-nodes N        any number of nodes up to N; above 16 powers of two and N are searched, and the "
    "gap "
    "counts what a bound says of the others\n"
    "  --model MODEL        catalogue name, config.json, .onnx or .toml (default: llama-2-7b)\n"
    "  --seq-len S          tokens per sample (default: what the model was published with)\n"
    "  --global-batch B     samples per step (default: about 4 million tokens, Llama 2's; 256 images)\n"
    "  --objective O        speed (default), memory, cost or time-to-train; expected-cost or expected-time "
    "of "
    "the whole training\n"
    "                       with failures, spot reclaims and checkpoints, over clusters and ways to buy "
    "them:\n"
    "    --purchase LIST      on-demand, spot, reserved, capacity-block, sagemaker (default: the first "
    "four)\n"
    "    --price I:KIND=USD   an hour of a node of instance type I, instead of the profile's\n"
    "    --job FILE           its [job] table says what may go wrong (docs/jobs.md; default: published "
    "rates); "
    "--interval best\n"
    "                         writes checkpoints as often as is best instead of as the file says\n"
    "    --finish-by TIME     30d, 12h; and --budget USD: both with --confidence PCT of the runs (default "
    "90%)\n"
    "    --carbon KG          of CO2 a kWh of the boards' energy\n"
    "    --csv FILE, --picture FILE.svg   all offers, with the front of cost, time and risk; --pareto shows "
    "it "
    "alone\n"
    "  --tokens T           tokens of the whole training, e.g. 2e12 or 300B; --deadline in hours and "
    "--budget in USD "
    "are for all of them\n"
    "  --memory-margin PCT  keep so much of every device's memory free (default 0)\n"
    "  --top K              plans to show (default 5)\n"
    "  --pareto             the front of step time, cost and memory over all clusters instead; of "
    "--objective "
    "nothing is asked\n"
    "  --offload WHERE      where activations may go that do not fit: host (default), none, or disk with "
    "--offload-bandwidth 6GB/s,\n"
    "                       the rate of a node's disks together, each way\n"
    "  --threads T          default: all cores; the answer does not depend on it\n"
    "  --time-limit S       stop after the work of S seconds with the best so far and its gap (default 15); "
    "work is counted,\n"
    "                       not timed (two cores do about a second's in a second), so the answer does not "
    "depend on the load\n"
    "  --for TOOL[,TOOL...] search what the tool runs, priced as it runs it: the export of the answer always "
    "works\n"
    "                       (megatron, megatron-bridge, nemo, torchtitan, deepspeed, accelerate, smp-v1, "
    "smp-v2, smexec);\n"
    "                       of several the best of each\n"
    "  --tp --pp --dp --cp --ep --micro-batch N[,N...], --schedule NAME[,...], --sharding none|optimizer|"
    "gradients|parameters,\n"
    "  --recompute none|selective|full, --precision fp32|tf32|fp16|bf16|fp8\n"
    "                       keep plans to these values; the answer says what that costs against all plans\n"
    "  --schedule auto      search the compute order of the plans found, for their own stage times, and keep "
    "it where it is faster\n"
    "  --calibration FILE   constants and site effects of one installation (smsim calibrate --help)\n"
    "  --out plan.toml      write the best plan, for smsim and smexec\n"
    "  --certificate FILE   write what was asked, excluded and simulated, for smplan verify\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no plan fits, with what is missing and what would make it fit.\n"
    "\n"
    "Example:\n"
    "  smplan --target p4d.24xlarge --nodes 16 --model llama-2-70b --global-batch 512 --out plan.toml\n";

namespace {

// The same clusters, searched with every value of what the options keep plans to.
std::optional<CostOfLimits> cost_of_limits(const Request& request, const model::ModelGraph& graph,
                                           const std::vector<planner::Target>& targets,
                                           const planner::RankedPlan& best) {
    if (request.limits.is_empty()) return std::nullopt;
    core::Diagnostics unneeded;
    Request free = request;
    free.limits = {};
    std::vector<planner::Target> all;
    const auto is_known = [&](const planner::Target& target) {
        return std::any_of(all.begin(), all.end(), [&](const planner::Target& other) {
            return other.cluster.instance.name == target.cluster.instance.name &&
                   other.cluster.nodes == target.cluster.nodes;
        });
    };
    for (const planner::Target& target : targets)
        if (!is_known(target))
            for (planner::Target& other :
                 targets_on(free, graph, target.cluster.instance, target.cluster.nodes, unneeded))
                all.push_back(std::move(other));
    planner::SearchRequest search = request.search;
    search.limits = {};
    search.searches_orders = false;
    search.keep = 1;
    planner::SearchResult result = planner::search_plans(graph, all, search, unneeded);
    if (result.plans.empty()) return std::nullopt;
    CostOfLimits cost{std::move(result.plans.front()), 0, result.account.is_proven_optimal};
    cost.pct = 100 * (best.value - cost.best.value) / cost.best.value;
    return cost;
}

// What is written beside the answer; machine_failure where it cannot be.
int write_files(const Answer& answer, const std::vector<std::string>& arguments, bool as_json,
                std::ostream& out, std::ostream& err) {
    const auto& [request, graph, targets] = answer.question;
    const planner::RankedPlan& best = answer.result.plans.front();
    std::vector<OutputFile> files;
    if (request.out_path)
        files.push_back(
            {*request.out_path, plan_text(request, graph, best, targets[best.candidate], *request.out_path)});
    if (request.certificate_path)
        files.push_back(
            {*request.certificate_path, core::to_json(certificate_of(request, graph, answer.result, targets,
                                                                     arguments, answer.intervals)) +
                                            "\n"});
    if (files.empty()) return good;
    const int code = write_outputs(files, err);
    if (code == good && !as_json)
        for (const OutputFile& file : files)
            out << fmt::format("  {} written to {}\n",
                               request.out_path && file.path == *request.out_path ? "plan" : "certificate",
                               file.path);
    return code;
}

Answer solve(Question question) {
    Answer answer{.question = std::move(question)};
    auto& [request, graph, targets] = answer.question;
    answer.result = planner::search_plans(graph, targets, request.search, answer.diagnostics);
    planner::SearchResult& result = answer.result;
    if (result.plans.empty()) {
        answer.diagnostics = why_no_plan(request, graph, targets, result, answer.diagnostics);
        return answer;
    }
    answer.limits = cost_of_limits(request, graph, targets, result.plans.front());
    answer.intervals = judge(result, graph, targets, request.posterior(), request.search.threads);
    for (const planner::RankedPlan& ranked : result.plans)
        if (ranked.order) request.assumptions.push_back(*ranked.order);
    if (request.search.searches_orders)
        request.assumptions.emplace_back("bounds, and what is proven by them, are of registered schedules");
    return answer;
}

int show_answer(const Answer& answer, bool as_json, std::ostream& out, std::ostream& err) {
    const auto& [request, graph, targets] = answer.question;
    if (answer.result.plans.empty()) {
        show(answer.diagnostics, as_json, out, err);
        return no_plan;
    }
    if (as_json) {
        out << core::to_json(
                   document_of(request, graph, answer.result, targets, answer.intervals, answer.limits))
            << '\n';
        return good;
    }
    show(answer.diagnostics, false, out, err);
    print(request, graph, answer.result, targets, answer.intervals, out);
    if (answer.limits) out << "  " << text_of(*answer.limits, request.limits) << '\n';
    return good;
}

}  // namespace

int run_plan_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, plan_options(), diagnostics);
    if (options.has("--help")) {
        out << plan_help;
        return good;
    }
    const std::vector<Runner> runners = read_runners(options);
    if (runners.size() > 1 && options.has("--certificate"))
        options.error("--certificate", "a certificate is of one search, and --for names several tools",
                      "name one of them");
    const std::optional<OfferRequest> offers = read_offer_request(options, diagnostics);
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
    std::vector<std::optional<Runner>> asked(runners.begin(), runners.end());
    if (asked.empty()) asked.emplace_back();
    std::vector<Question> questions;
    for (const std::optional<Runner>& runner : asked) {
        std::optional<Question> question = read_question(options, runner, diagnostics, asked.size());
        if (!question || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
        questions.push_back(std::move(*question));
    }
    if (offers) {
        show(diagnostics, false, out, err);
        return show_offers(questions.front(), *offers, as_json, out, err);
    }
    if (options.has("--pareto")) {
        show(diagnostics, false, out, err);
        return show_front(questions.front(), as_json, out, err);
    }
    std::vector<Answer> answers;
    for (Question& question : questions) answers.push_back(solve(std::move(question)));
    show(diagnostics, false, out, err);
    const int code = answers.size() == 1 ? show_answer(answers.front(), as_json, out, err)
                                         : show_best_of_each(answers, as_json, out, err);
    if (code != good) return code;
    return write_files(answers[best_of(answers)], arguments, as_json, out, err);
}

}  // namespace apps
