#include "api/plan/plan_limits.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "planner/explain.h"
#include "schedule/pipeline/registry.h"
#include "schedule/program/pieces.h"

namespace api {

namespace {

constexpr long long most_of_a_degree = 1 << 22;

void refuse(Options& options, const std::string& name, const std::string& text,
            const std::vector<std::string>& names) {
    const std::string near = core::did_you_mean(text, names);
    options.error(name, fmt::format("{} = {} is no choice", name, core::in_quotes(text)),
                  fmt::format("{}choose from {}", near.empty() ? "" : fmt::format("did you mean {}? ", near),
                              fmt::join(names, ", ")));
}

std::vector<int> numbers(Options& options, const std::string& name, long long most = most_of_a_degree) {
    std::vector<int> values;
    for (const std::string& text : options.list(name)) {
        const std::optional<long long> number = core::parse_integer(text);
        if (number && *number >= 1 && *number <= most) values.push_back(core::narrow<int>(*number));
        else
            options.error(
                name,
                fmt::format("{} = {} is not a whole number from 1 to {}", name, core::in_quotes(text), most),
                fmt::format("one value or several: {} 4,8", name));
    }
    return values;
}

template <class Enum, std::size_t n>
std::vector<Enum> words(Options& options, const std::string& name, const Enum (&all)[n]) {
    std::vector<std::string> names;
    for (const Enum value : all) names.emplace_back(schedule::name_of(value));
    std::vector<Enum> values;
    for (const std::string& text : options.list(name)) {
        const auto found = std::find(names.begin(), names.end(), text);
        if (found != names.end()) values.push_back(all[found - names.begin()]);
        else refuse(options, name, text, names);
    }
    return values;
}

void read_schedules(Options& options, LimitOptions& limits) {
    std::vector<std::string> names = {"auto"};
    for (const schedule::PipelineSchedule& schedule : schedule::pipeline_schedules())
        if (planner::is_searched(schedule)) names.push_back(schedule.name);
    for (const std::string& text : options.list("--schedule")) {
        const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(text);
        if (text == "auto") limits.searches_orders = true;
        else if (found && planner::is_searched(*found)) limits.plans.schedules.push_back(found->name);
        else if (found)
            options.error(
                "--schedule",
                fmt::format("--schedule = {} is not searched: the search is of schedules that train "
                            "with one copy of the weights",
                            core::in_quotes(text)),
                "simulate it with smsim");
        else refuse(options, "--schedule", text, names);
    }
}

}  // namespace

const std::vector<std::string>& limit_option_names() {
    static const std::vector<std::string> names = {"--tp",
                                                   "--pp",
                                                   "--dp",
                                                   "--cp",
                                                   "--ep",
                                                   "--etp",
                                                   "--schedule",
                                                   "--precision",
                                                   "--recompute",
                                                   "--sharding",
                                                   "--micro-batch",
                                                   "--tensor-overlap",
                                                   "--context-communication"};
    return names;
}

std::vector<core::DataType> read_precisions(Options& options) {
    const std::vector<std::string> names = {"fp32", "tf32", "fp16", "bf16", "fp8"};
    std::vector<core::DataType> precisions;
    for (const std::string& text : options.list("--precision")) {
        if (std::find(names.begin(), names.end(), text) != names.end())
            precisions.push_back(*core::data_type_named(text));
        else refuse(options, "--precision", text, names);
    }
    return precisions;
}

LimitOptions read_limits(Options& options) {
    using schedule::Recompute, schedule::Sharding;
    constexpr Recompute recomputes[] = {Recompute::none, Recompute::selective, Recompute::full};
    constexpr Sharding shardings[] = {Sharding::none, Sharding::optimizer, Sharding::gradients,
                                      Sharding::parameters};
    LimitOptions limits;
    planner::PlanLimits& plans = limits.plans;
    plans.tensor = numbers(options, "--tp");
    plans.pipeline = numbers(options, "--pp");
    plans.replicas = numbers(options, "--dp");
    plans.context = numbers(options, "--cp");
    plans.expert = numbers(options, "--ep");
    plans.expert_tensor = numbers(options, "--etp");
    plans.micro_batch = numbers(options, "--micro-batch");
    plans.tensor_overlap = numbers(options, "--tensor-overlap", schedule::most_pieces);
    plans.context_communication = words(options, "--context-communication", schedule::context_communications);
    plans.recompute = words(options, "--recompute", recomputes);
    plans.sharding = words(options, "--sharding", shardings);
    read_schedules(options, limits);
    limits.precisions = read_precisions(options);
    for (const std::string& name : limit_option_names()) {
        std::vector<std::string> values = options.list(name);
        std::erase(values, "auto");
        if (values.empty()) continue;
        limits.text += fmt::format("{}{} {}", limits.text.empty() ? "" : " ", name, fmt::join(values, ","));
    }
    return limits;
}

core::Value to_value(const CostOfLimits& cost, const LimitOptions& limits) {
    core::Value value = core::Value::table();
    value["kept_to"] = limits.text;
    value["cost_pct"] = cost.pct;
    core::Value without = core::Value::table();
    without["plan"] = planner::describe(cost.best.plan);
    without["step_time_s"] = cost.best.evaluation.step_time.value;
    without["peak_memory_gib"] = core::to_gibibytes(cost.best.evaluation.peak_memory);
    without["proven_optimal"] = cost.is_proven;
    value["without"] = std::move(without);
    return value;
}

std::string text_of(const CostOfLimits& cost, const LimitOptions& limits) {
    constexpr double nothing = 0.005;  // per cent: less is shown as zero
    if (std::abs(cost.pct) < nothing)
        return fmt::format("{} costs nothing: no better plan {} without", limits.text,
                           cost.is_proven ? "exists" : "was found");
    return fmt::format("{} {} {:.2f} %: without, {} takes {} a step{}", limits.text,
                       cost.pct < 0 ? "gains" : "costs", std::abs(cost.pct),
                       planner::describe(cost.best.plan), core::format(cost.best.evaluation.step_time),
                       cost.is_proven ? "" : " (the best found, not proven)");
}

}  // namespace api
