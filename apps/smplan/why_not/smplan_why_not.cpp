#include "apps/smplan/why_not/smplan_why_not.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <thread>

#include <fmt/core.h>

#include "api/exchange.h"
#include "api/plan/answer.h"
#include "api/plan/plan_limits.h"
#include "api/plan/question.h"
#include "api/plan/runners.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/smplan/why_not/report.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "planner/explain.h"
#include "sim/scenario.h"

namespace apps {

namespace {

const char* const why_not_help =
    "Usage: smplan why-not plan.toml [--for TOOL] [--precision P] [--time-limit S] [--threads T] "
    "[--calibration FILE] [--json]\n"
    "       smplan why-not FILE --from TARGET [options of smplan import] [...]\n"
    "\n"
    "A plan of yours against the best plan of the same model, cluster and global batch: is it refused, does "
    "it not fit,\n"
    "is it slower, or equal within the error of predictions? The difference is divided over the fields in "
    "which the two differ:\n"
    "the mean over all orders of changing them one by one (Shapley values; sampled orders above 8 changes), "
    "so that shares add\n"
    "up. Fields that make a legal plan only together are one change. Data-parallel degree and number of "
    "micro-batches follow\n"
    "from devices and batch, partitions from the number of stages. A mixture that does not fit counts with "
    "its time.\n"
    "\n"
    "  --from TARGET        read FILE as smplan import does, with its --model, --seq-len, --instance, "
    "--nodes,\n"
    "                       --processes-per-node, --micro-batch (smplan import --help)\n"
    "  --for TOOL           the best of the plans that the tool runs (smplan --help lists tools)\n"
    "  --precision P        of the best plan: fp32, tf32, fp16, bf16 or fp8 (default: the device's usual "
    "one)\n"
    "  --time-limit S       stop the search after the work of S seconds (default 15); --threads T (default: "
    "all cores)\n"
    "  --calibration FILE   constants and site effects of one installation (smsim calibrate --help)\n"
    "  --json               one JSON document: verdict, plan{}, best{}, difference_pct, changes[] {field, "
    "from, to, step_time_s, share_s}\n"
    "\n"
    "Exit codes: 0 compared, 1 internal failure, 2 wrong input or a refused plan, 3 the plan does not fit or "
    "there is no best plan,\n"
    "4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smplan why-not scenarios/llama2_70b_p4d.toml\n";

struct WhyNotRequest {
    std::optional<api::Runner> runner;
    std::vector<core::DataType> precisions;
    std::optional<sim::Posterior> calibration;
    int threads = 1;
    core::Seconds time_limit;

    const sim::Posterior& posterior() const { return calibration ? *calibration : sim::shipped_posterior(); }
};

WhyNotRequest read_request(Options& options, core::Diagnostics& diagnostics) {
    WhyNotRequest request;
    const std::vector<api::Runner> runners = api::read_runners(options);
    if (runners.size() > 1)
        options.error("--for", "--for names several tools", "compare with the best plan of one of them");
    if (!runners.empty()) request.runner = runners.front();
    request.precisions = api::read_precisions(options);
    request.threads = core::narrow<int>(
        options.integer("--threads", 1, 1024).value_or(std::max(1u, std::thread::hardware_concurrency())));
    constexpr double default_limit = 15;
    request.time_limit = core::Seconds(options.real("--time-limit", 0, 1e7).value_or(default_limit));
    if (const std::optional<std::string> file = options.text("--calibration"))
        request.calibration = sim::load_posterior(*file, diagnostics);
    return request;
}

struct AskedPlan {
    std::string name;      // the file
    core::Value document;  // its tree
};

// Errors of another tool's words are of its file, those of its plan of what became of it.
std::optional<AskedPlan> read_plan_document(Options& options, core::Diagnostics& diagnostics) {
    if (options.has("--from")) {
        const std::optional<schedule::PlanFile> file = api::read_other_tool(options, diagnostics);
        if (!file) return std::nullopt;
        const std::string& name = options.positional().front();
        std::optional<core::Value> document =
            core::parse_toml(schedule::write_plan_file(*file), name + " as plan.toml", diagnostics);
        if (!document) return std::nullopt;
        return AskedPlan{name, std::move(*document)};
    }
    for (const std::string& name : api::import_option_names())
        if (options.has(name))
            options.error(name, name + " is for another tool's file", "add --from TARGET, or leave it out");
    const std::string name =
        options.only_positional("plan.toml", "plan", "name the plan, or another tool's file with --from");
    if (diagnostics.has_errors()) return std::nullopt;
    std::optional<core::Value> document = sim::load_scenario_document(name, diagnostics);
    if (!document) return std::nullopt;
    return AskedPlan{name, std::move(*document)};
}

// Model and cluster alone, with the batch and the choices that no search makes: of a plan that is refused,
// as far as it can be read.
std::optional<sim::Scenario> without_plan(const AskedPlan& asked) {
    core::Diagnostics unneeded;
    const core::Value* table = asked.document.find("plan");
    if (table == nullptr || !table->is_table()) return std::nullopt;
    core::Value bare = asked.document;
    bare["plan"] = core::Value::table();
    std::optional<sim::Scenario> scenario = sim::read_scenario(bare, asked.name, unneeded);
    if (!scenario) return std::nullopt;
    const std::optional<schedule::Plan> plan =
        schedule::read_plan(*table, asked.document.find("training"), unneeded, scenario->cluster.nodes);
    if (!plan) return std::nullopt;
    scenario->file.plan = *plan;
    core::Diagnostics of_framework;
    if (const core::Value* framework = table->find("framework")) bare["plan"]["framework"] = *framework;
    if (!sim::read_scenario(bare, asked.name, of_framework)) scenario->file.plan.framework.clear();
    return scenario;
}

std::int64_t batch_of(const schedule::Plan& plan) {
    return std::int64_t{plan.micro_batch} * plan.micro_batches * plan.layout.replicas();
}

// From where the best plan is searched: what no search varies is as in the plan.
std::vector<planner::Target> targets_of(const WhyNotRequest& request, const sim::Scenario& scenario,
                                        core::Diagnostics& diagnostics) {
    const auto base_with = [&](std::optional<core::DataType> precision) {
        schedule::Plan base =
            api::base_plan(scenario.graph, scenario.cluster.instance.device, precision, diagnostics);
        base.optimizer = scenario.file.plan.optimizer;
        base.framework = scenario.file.plan.framework;
        base.fused_cross_entropy = scenario.file.plan.fused_cross_entropy;
        base.offload_bandwidth = scenario.file.plan.offload_bandwidth;
        base.optimizer_offload = scenario.file.plan.optimizer_offload;
        base.parameter_offload = scenario.file.plan.parameter_offload;
        return base;
    };
    if (request.runner)
        return api::targets_for(*request.runner, scenario.graph, scenario.cluster, base_with(std::nullopt),
                                request.precisions);
    std::vector<planner::Target> targets;
    for (const core::DataType precision : request.precisions)
        targets.push_back({scenario.cluster, base_with(precision)});
    if (targets.empty()) targets.push_back({scenario.cluster, base_with(std::nullopt)});
    return targets;
}

planner::SearchResult search(const WhyNotRequest& request, const sim::Scenario& scenario,
                             const std::vector<planner::Target>& targets, core::Diagnostics& diagnostics) {
    planner::SearchRequest question;
    question.global_batch = core::narrow<int>(batch_of(scenario.file.plan));
    question.threads = request.threads;
    question.time_limit = request.time_limit;
    question.constants = request.posterior().cost_constants();
    question.refines_first = question.recomputes_some = true;
    if (request.runner && !targets.empty())
        question.offload =
            api::offload_of(*request.runner, targets.front(), scenario.graph, question.offload);
    return planner::search_plans(scenario.graph, targets, question, diagnostics);
}

// A plan that was not searched, as one that was.
std::optional<planner::RankedPlan> predicted(const sim::Scenario& scenario, const sim::Posterior& posterior,
                                             core::Diagnostics& diagnostics) {
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario.graph, scenario.cluster, scenario.file.plan, diagnostics,
                      {.constants = posterior.cost_constants()});
    if (!evaluation) return std::nullopt;
    sim::apply_site_effects(*evaluation, posterior);
    planner::RankedPlan plan;
    plan.plan = scenario.file.plan;
    plan.evaluation = std::move(*evaluation);
    if (const auto partition =
            sim::complete_partition(plan.plan, scenario.graph, scenario.cluster, posterior.cost_constants()))
        plan.plan.partition = *partition;
    plan.value = plan.evaluation.step_time.value;
    plan.bound_by = planner::bound_by(plan.evaluation);
    return plan;
}

int code_of(const WhyNotAnswer& answer) {
    if (!answer.plan) return wrong_input;
    return answer.best && answer.plan->evaluation.fits ? good : no_plan;
}

}  // namespace

int run_why_not_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    OptionNames names{.with_value = {"--for", "--precision", "--time-limit", "--threads", "--calibration"},
                      .flags = {"--json", "--help"}};
    names.with_value.insert(names.with_value.end(), api::import_option_names().begin(),
                            api::import_option_names().end());
    Options options(arguments, names, diagnostics);
    if (options.has("--help")) {
        out << why_not_help;
        return good;
    }
    const WhyNotRequest request = read_request(options, diagnostics);
    const std::optional<AskedPlan> asked = read_plan_document(options, diagnostics);
    if (diagnostics.has_errors() || !asked) return show(diagnostics, as_json, out, err);

    std::optional<sim::Scenario> scenario = sim::read_scenario(asked->document, asked->name, diagnostics);
    const core::Diagnostics refused = diagnostics;
    const bool is_legal = scenario.has_value();
    if (!is_legal) scenario = without_plan(*asked);
    if (!scenario) return show(diagnostics, as_json, out, err);

    WhyNotAnswer answer;
    answer.plan_name = asked->name;
    answer.global_batch = core::narrow<int>(batch_of(scenario->file.plan));
    answer.target.cluster = scenario->cluster;
    if (request.runner) answer.runner = request.runner->name;
    const sim::Posterior& posterior = request.posterior();
    core::Diagnostics failures;
    if (is_legal) {
        answer.plan = predicted(*scenario, posterior, failures);
        if (!answer.plan) return show(failures, as_json, out, err);
        answer.plan_intervals = sim::intervals_of(answer.plan->evaluation, scenario->graph, scenario->cluster,
                                                  answer.plan->plan, posterior);
    }
    const std::vector<planner::Target> targets = targets_of(request, *scenario, failures);
    if (failures.has_errors()) return show(failures, as_json, out, err);
    core::Diagnostics searched;
    planner::SearchResult result = search(request, *scenario, targets, searched);
    answer.account = result.account;
    if (!result.plans.empty()) {
        answer.best_intervals =
            api::judge(result, scenario->graph, targets, posterior, request.threads).front();
        answer.best = std::move(result.plans.front());
    }
    if (answer.plan && answer.best) {
        answer.why = planner::why_not(scenario->graph, scenario->cluster, answer.plan->plan,
                                      answer.best->plan, posterior, failures);
        if (!answer.why) return show(failures, as_json, out, err);
    }
    if (as_json) out << core::to_json(document_of(answer, scenario->graph, refused)) << '\n';
    else {
        show(refused, false, out, err);
        out << text_of(answer, scenario->graph);
    }
    return code_of(answer);
}

}  // namespace apps
