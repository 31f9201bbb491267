#include "sim/report/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/document.h"
#include "model/model_graph.h"
#include "schedule/plan/explicit_order.h"
#include "sim/cost/host_memory.h"
#include "sim/report/breakdown.h"
#include "sim/report/memory_report.h"

namespace sim {

namespace {

std::string parallel_words(const schedule::Plan& plan) {
    const schedule::ParallelLayout& layout = plan.layout;
    std::string text =
        fmt::format("data {}{} x tensor {} x pipeline {} (order {})", layout.replicas(),
                    schedule::context_words(plan), layout.tensor, layout.pipeline, layout.order);
    if (layout.expert_ranks() > 1) text += fmt::format(", experts over {} ranks", layout.expert_ranks());
    if (plan.virtual_stages > 1) text += fmt::format(", {} virtual stages a rank", plan.virtual_stages);
    if (plan.has_sequence_parallelism()) text += ", sequence parallel";
    return text;
}

std::string memory_words(const schedule::Plan& plan) {
    std::string text = fmt::format("recompute {}, sharding {}", schedule::recomputation_text(plan),
                                   schedule::name_of(plan.sharding));
    if (plan.sharding != schedule::Sharding::none)
        text += fmt::format(" over {} ranks", plan.effective_shard_degree());
    if (plan.offload != schedule::Offload::none)
        text += fmt::format(", activations offloaded to {}, back {} units ahead",
                            plan.offload == schedule::Offload::host ? "the host" : "disk",
                            plan.activation_loading_horizon);
    text += fmt::format(", {} compute, {} gradients, {}{}{}", core::name_of(plan.precision.compute),
                        core::name_of(plan.precision.gradients), schedule::name_of(plan.optimizer.kind),
                        plan.precision.has_master_parameters ? " with fp32 master weights" : "",
                        plan.updates_on_hosts() ? " on the hosts" : "");
    if (plan.keeps_parameters_on_hosts()) text += ", parameters and gradients too";
    return text;
}

std::string partition_words(const schedule::Plan& plan) {
    if (plan.layout.pipeline * plan.virtual_stages == 1) return {};
    if (plan.partition.first_units.empty()) return "chosen so that stages need equal FLOPs";
    std::string text = "first units";
    for (std::int32_t unit : plan.partition.first_units) text += fmt::format(" {}", unit);
    return text;
}

std::string count_words(double count) {
    if (count >= 1e12) return fmt::format("{:.2f} trillion", count / 1e12);
    if (count >= 1e9) return fmt::format("{:.2f} billion", count / 1e9);
    if (count >= 1e6) return fmt::format("{:.2f} million", count / 1e6);
    return fmt::format("{:.0f}", count);
}

// The rate that cluster::price counts, with the day it was read: prices change.
std::string price_words(const cluster::InstanceType& instance) {
    for (const cluster::Price& price : instance.prices)
        if (price.kind == "on-demand")
            return price.date.empty() ? fmt::format(" (on-demand, from {})", price.source)
                                      : fmt::format(" (on-demand {}, {})", price.region, price.date);
    return {};
}

std::string stage_words(const std::vector<int>& stages) {
    std::string text;
    for (int stage : stages) text += (text.empty() ? "" : ",") + std::to_string(stage);
    return text;
}

// Tables that are as wide as they are whatever the terminal.
constexpr std::size_t whole_width = 1000;

std::string memory_table(const Evaluation& evaluation, const schedule::Plan& plan) {
    // Small models in MiB: a table of zeros says nothing.
    const bool is_small = evaluation.peak_memory < core::gibibytes(2);
    const auto in_unit = [&](core::Bytes bytes) { return core::to_gibibytes(bytes) * (is_small ? 1024 : 1); };
    std::string text = fmt::format("Memory at the peak of each rank class, {} ({} available, {})\n",
                                   is_small ? "MiB" : "GiB", core::format(evaluation.available_memory),
                                   evaluation.fits ? "fits" : "DOES NOT FIT");
    core::TextTable table({"pipeline", "peak", "params", "grads", "optimizer", "activations", "work",
                           "overhead", "stages", ""});
    const auto cell = [&](core::Bytes bytes) { return fmt::format("{:.2f}", in_unit(bytes)); };
    for (const ClassMemory& row : evaluation.memory)
        table.add({fmt::format("{}", row.pipeline), cell(row.peak), cell(row.parameters), cell(row.gradients),
                   cell(row.optimizer), cell(row.activations), cell(row.workspace), cell(row.overhead),
                   stage_words(row.stages), row.peak > evaluation.available_memory ? "<- too much" : ""});
    text += table.text(whole_width);
    if (evaluation.host_memory.value > 0)
        text += fmt::format("  on the fullest host {} for offloaded {}{}\n",
                            core::format(evaluation.host_memory), what_is_offloaded(plan),
                            evaluation.available_host_memory
                                ? fmt::format(" of {}", core::format(*evaluation.available_host_memory))
                                : "");
    return text;
}

std::string breakdown_bars(const Evaluation& evaluation) {
    constexpr double widest = 40;
    std::string text = "Where the step of the critical rank goes\n";
    for (const BreakdownPart& part : breakdown_parts()) {
        const core::Seconds time = evaluation.breakdown.*part.part;
        constexpr double of_rounding = 1e-9;  // share of the step
        if (time <= evaluation.step_time * of_rounding) continue;
        const double share = time / evaluation.step_time;
        const auto bar = static_cast<std::size_t>(std::lround(share * widest));
        text += fmt::format("  {:<16} {:>9}  {:>5.1f} %{}\n", part.name, core::format(time), share * 100,
                            bar > 0 ? "  " + std::string(bar, '#') : "");
    }
    return text;
}

// Figures of a sweep's table, in its order: key of the contract, heading.
struct Column {
    const char* key;
    const char* heading;
};
constexpr Column columns[] = {
    {"step_time_s", "step s"},       {"samples_per_s", "samples/s"},
    {"tokens_per_s", "tokens/s"},    {"mfu", "MFU"},
    {"peak_memory_gib", "peak GiB"}, {"usd_per_million_samples", "USD/M samples"},
};

std::string figure(const core::Value& result, const Column& column) {
    const core::Value* value = result.find(column.key);
    return value && value->is_number() ? core::with_thousands(value->number()) : "";
}

bool fits(const core::Value& result) {
    const core::Value* value = result.find("fits");
    return value && value->kind() == core::Value::Kind::boolean && value->boolean();
}

std::string first_error(const core::Diagnostics& diagnostics) {
    for (const core::Diagnostic& entry : diagnostics.entries())
        if (entry.severity == core::Severity::error) return entry.message;
    return {};
}

}  // namespace

std::string text_report(const Evaluation& evaluation, const model::ModelGraph& graph,
                        const cluster::Cluster& cluster, const schedule::Plan& plan,
                        const std::string& question, const PredictionIntervals* intervals) {
    std::string text;
    if (!question.empty()) text += question + "\n\n";
    const cluster::InstanceType& instance = cluster.instance;
    text += fmt::format("Model     {}: {} parameters", graph.name,
                        count_words(static_cast<double>(model::parameter_count(graph))));
    if (graph.tokens_per_sample > 0) text += fmt::format(", {} tokens a sample", graph.tokens_per_sample);
    text += "\n";
    text += fmt::format("Cluster   {} x {}: {} x {}", cluster.nodes, instance.name, cluster.device_count(),
                        instance.device.name);
    if (cluster.nodes > 1)
        text += fmt::format(", {} {} a node each way", instance.network_name,
                            core::format(instance.network_baseline));
    text += "\n";
    text += fmt::format("Plan      {}\n", parallel_words(plan));
    text += fmt::format("          {}: {} micro-batch{} of {}, global batch {}\n",
                        schedule::schedule_label(plan.schedule), plan.micro_batches,
                        plan.micro_batches == 1 ? "" : "es", plan.micro_batch, plan.global_batch());
    text += fmt::format("          {}\n", memory_words(plan));
    if (const std::string partition = partition_words(plan); !partition.empty())
        text += fmt::format("          partition: {}\n", partition);
    text += "\n";

    text += fmt::format("Step      {}{}: {} samples/s", core::format(evaluation.step_time),
                        intervals ? fmt::format(" (80 %: {} to {})", core::format(intervals->step.low),
                                                core::format(intervals->step.high))
                                  : "",
                        core::with_thousands(evaluation.samples_per_second));
    if (graph.tokens_per_sample > 0)
        text += fmt::format(", {} tokens/s", core::with_thousands(evaluation.tokens_per_second));
    text += "\n";
    text += fmt::format("          {} of the model a device, MFU {:.1f} %; {} with recomputation\n",
                        core::format(evaluation.model_flops_per_gpu), evaluation.mfu * 100,
                        core::format(evaluation.hardware_flops_per_gpu));
    if (evaluation.rate.value > 0)
        text += fmt::format(
            "Cost      {} USD an hour{}, {} USD per million samples\n",
            core::with_thousands(core::to_dollars_per_hour(evaluation.rate)), price_words(cluster.instance),
            core::with_thousands(evaluation.rate.value * 1e6 / evaluation.samples_per_second));
    text += "\n" + memory_table(evaluation, plan) + "\n" + breakdown_bars(evaluation);
    if (intervals) text += "\n" + text_of(*intervals);
    if (!evaluation.assumptions.empty()) {
        text += "\nAssumptions\n";
        for (const std::string& line : evaluation.assumptions) text += "  - " + line + "\n";
    }
    if (!evaluation.fits) text += "\nDoes not fit: " + evaluation.tightest + "\n";
    if (evaluation.out_of_memory) text += text_of(*evaluation.out_of_memory);
    return text;
}

std::string sweep_text(const std::vector<SweepRow>& rows, std::size_t width) {
    if (rows.empty()) return {};
    std::vector<std::string> headings;
    for (const auto& [key, value] : rows.front().set) headings.push_back(key);
    for (const Column& column : columns) headings.emplace_back(column.heading);
    headings.emplace_back("");
    core::TextTable table(std::move(headings), 0);
    for (const SweepRow& row : rows) {
        std::vector<std::string> cells;
        for (const auto& [key, value] : row.set) cells.push_back(value);
        for (const Column& column : columns) cells.push_back(figure(row.result, column));
        cells.push_back(row.result.is_null() ? first_error(row.diagnostics)
                        : fits(row.result)   ? ""
                                             : "does not fit");
        table.add(std::move(cells));
    }
    return table.text(width);
}

std::string sweep_csv(const std::vector<SweepRow>& rows) {
    if (rows.empty()) return {};
    std::string text;
    for (const auto& [key, value] : rows.front().set) text += core::csv_cell(key) + ",";
    for (const Column& column : columns) text += std::string(column.key) + ",";
    text += "fits,error\n";
    for (const SweepRow& row : rows) {
        for (const auto& [key, value] : row.set) text += core::csv_cell(value) + ",";
        for (const Column& column : columns) {
            // As JSON writes a number: the fewest digits that read back to the same value.
            std::string digits;
            if (const core::Value* value = row.result.find(column.key)) digits = core::to_json(*value);
            digits.erase(std::remove(digits.begin(), digits.end(), '\n'), digits.end());
            text += digits + ",";
        }
        text += row.result.is_null() ? "," : fits(row.result) ? "true," : "false,";
        text += core::csv_cell(first_error(row.diagnostics)) + "\n";
    }
    return text;
}

core::Value sweep_value(const std::vector<SweepRow>& rows) {
    core::Value list = core::Value::array();
    for (const SweepRow& row : rows) {
        core::Value entry = core::Value::table();
        core::Value set = core::Value::table();
        for (const auto& [key, value] : row.set) set[key] = value;
        entry["set"] = std::move(set);
        if (row.result.is_null()) {
            entry["errors"] = *core::to_value(row.diagnostics).find("errors");
        } else {
            for (const auto& [key, value] : row.result.members()) entry[key] = value;
        }
        list.append(std::move(entry));
    }
    core::Value document = core::Value::table();
    document["sweep"] = std::move(list);
    return document;
}

}  // namespace sim
