#include "apps/smplan/smplan_order.h"

#include <filesystem>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/order/plan_order.h"
#include "schedule/plan/explicit_order.h"
#include "sim/evaluate.h"
#include "sim/scenario.h"

namespace apps {

namespace {

const char* const order_help =
    "Usage: smplan order plan.toml [--out ordered.toml] [--search-time S] [--seed N] [--json]\n"
    "\n"
    "Searches the compute order of one plan for its own stage times, transfers and memory, whatever schedule "
    "it names, and writes the plan with\n"
    "the order found in it, for smsim and smexec; or with the best registered schedule where no order found "
    "beats that.\n"
    "\n"
    "  --out FILE       write there, in the folder of plan.toml (default: standard output)\n"
    "  --search-time S  of the search, estimated (default 0.6); --seed N of its random numbers (default 1)\n"
    "  --json           one JSON document: schedule, explanation, step_time_s, peak_memory_gib, fits, plan "
    "(as in plan.toml)\n"
    "\n"
    "Example:\n"
    "  smplan order scenarios/cpu_gpt_pipeline2.toml --out scenarios/ordered.toml\n";

// The name under which the folder of a file is known, whether the file exists or not.
std::filesystem::path folder_of(const std::string& path) {
    std::error_code failure;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, failure).parent_path(), failure);
}

}  // namespace

int run_order_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {{"--out", "--search-time", "--seed"}, {"--json", "--help"}}, diagnostics);
    if (options.has("--help")) {
        out << order_help;
        return good;
    }
    const std::string source = options.only_positional("PLAN.toml", "plan", "smplan order plan.toml");
    planner::SearchBudget budget;
    budget.time_limit =
        core::Seconds(options.real("--search-time", 0.01, 600).value_or(budget.time_limit.value));
    budget.seed = static_cast<std::uint64_t>(
        options.integer("--seed", 0, 1 << 30).value_or(static_cast<std::int64_t>(budget.seed)));
    const auto path = options.text("--out");
    if (path) check_output("--out", *path, diagnostics);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (path && folder_of(*path) != folder_of(source)) {
        // A plan's references are relative to the file that contains them.
        options.error("--out", fmt::format("{} is not in the folder of {}", *path, source),
                      "write it beside the plan: what both refer to is found from there");
        return show(diagnostics, as_json, out, err);
    }
    const std::optional<core::Value> document = sim::load_scenario_document(source, diagnostics);
    std::optional<sim::Scenario> scenario =
        document ? sim::read_scenario(*document, source, diagnostics) : std::nullopt;
    auto ordered = scenario && !diagnostics.has_errors()
                       ? planner::with_searched_order(scenario->graph, scenario->cluster, scenario->file.plan,
                                                      diagnostics, budget)
                       : std::nullopt;
    const auto evaluation =
        !ordered              ? std::nullopt
        : ordered->evaluation ? std::move(ordered->evaluation)
                              : sim::evaluate(scenario->graph, scenario->cluster, ordered->plan, diagnostics);
    if (!evaluation || !as_json) show(diagnostics, as_json, out, err);
    if (!evaluation) return wrong_input;
    scenario->file.plan = ordered->plan;
    core::Value prediction = core::Value::table();
    prediction["step_time_s"] = evaluation->step_time.value;
    prediction["peak_memory_gib"] = core::to_gibibytes(evaluation->peak_memory);
    scenario->file.prediction = prediction;
    const std::string toml = schedule::write_plan_file(scenario->file);
    if (as_json) {
        core::Value answer;
        answer["schedule"] = schedule::schedule_label(ordered->plan.schedule);
        answer["explanation"] = ordered->explanation;
        answer["step_time_s"] = evaluation->step_time.value;
        answer["peak_memory_gib"] = core::to_gibibytes(evaluation->peak_memory);
        answer["fits"] = evaluation->fits;
        core::Diagnostics ignored;
        if (const auto parsed = core::parse_toml(toml, "plan.toml", ignored)) answer["plan"] = *parsed;
        out << core::to_json(answer) << '\n';
    } else {
        err << ordered->explanation << '\n';
        if (!path) out << toml;
    }
    if (path) {
        if (const int code = write_outputs({{*path, toml}}, as_json, err); code != good) return code;
    }
    return evaluation->fits ? good : no_plan;
}

}  // namespace apps
