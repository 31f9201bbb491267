#include "apps/smexec/smexec_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <sstream>

#include <fmt/core.h>

#include "apps/termination.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/cuda/device/device.h"
#include "model/operators/cost.h"
#include "schedule/plan/explicit_order.h"
#include "sim/report/timeline_columns.h"

namespace apps {

namespace {

std::string losses_line(const std::vector<double>& losses) {
    if (losses.empty()) return "not known";
    if (losses.size() == 1) return fmt::format("{:.6f}", losses[0]);
    return fmt::format("{:.6f} at the first step, {:.6f} at the last", losses.front(), losses.back());
}

struct Rates {
    double samples = 0, tokens = 0;  // a second
    // Shares of the matrix-product rate: causal attention counted as the full square (PaLM, arXiv 2204.02311,
    // appendix B), and as half of it (llm.c, gpt2_estimate_mfu).
    double mfu = 0, mfu_causal_half = 0;
};

// Of causal attention in one sample, forward, what lies above the diagonal.
core::Flops masked_flops(const model::ModelGraph& graph) {
    core::Flops masked;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(graph.operators.size()); ++i)
        if (graph.operators[i].kind == model::OperatorKind::attention &&
            graph.operators[i].attributes.is_causal)
            masked +=
                model::phase_cost(graph, {i, i + 1}, model::Phase::forward, model::CostContext{}).flops * 0.5;
    return masked;
}

Rates rates_of(const ExecutionReport& report) {
    const ExecutionJob& job = report.job;
    const double time = report.times.median.value, samples = job.plan().global_batch();
    const int cores = std::min(job.plan().layout.ranks(), job.here.device_count());
    const core::Flops forward = model::forward_flops_per_sample(job.scenario.graph);
    const double flops = 3 * forward.value * samples / time;
    Rates rates;
    rates.samples = samples / time;
    rates.tokens =
        rates.samples * static_cast<double>(std::max<std::int64_t>(1, job.scenario.graph.tokens_per_sample));
    // A GPU's rate is its vendor's, for the precision of the products; a processor's is measured for the
    // prediction.
    const auto& peak = job.here.instance.device.peak;
    if (report.request.on_gpu) {
        if (const auto found = peak.find(job.plan().precision.compute); found != peak.end())
            rates.mfu = flops / (found->second.value * cores);
    } else if (report.predicted) {
        rates.mfu = flops / (peak.at(core::DataType::fp32).value * cores);
    }
    rates.mfu_causal_half =
        rates.mfu * (1 - masked_flops(job.scenario.graph).value / std::max(1.0, forward.value));
    return rates;
}

core::Value evaluations_of(const exec::RunResult& result) {
    core::Value list = core::Value::array();
    for (const exec::Evaluated& one : result.evaluations) {
        core::Value row = core::Value::table();
        row["step"] = one.step;
        row["loss"] = one.loss;
        list.append(std::move(row));
    }
    return list;
}

core::Value step_of(const ExecutionReport& report) {
    core::Value step = core::Value::table();
    step["median"] = report.times.median.value;
    step["min"] = report.times.least.value;
    step["p10"] = report.times.p10.value;
    step["p90"] = report.times.p90.value;
    step["p95"] = report.times.p95.value;
    step["steps"] = report.times.steps;
    step["left_out"] = report.times.left_out;
    return step;
}

core::Value document_of(const ExecutionReport& report) {
    const Rates rates = rates_of(report);
    core::Value value = core::Value::table();
    value["backend"] = report.request.on_gpu ? "cuda" : "cpu";
    value["ranks"] = report.job.plan().layout.ranks();
    value["transport"] = report.transport;
    value["hosts"] = report.hosts;
    value["first_step"] = report.first_step;
    value["steps"] = report.result.step_times.size();
    value["instructions"] = report.result.instruction_set;
    value["kernels"] = core::Value::array();
    for (const exec::KernelChoice& choice : report.result.kernel_choices) {
        core::Value row = core::Value::table();
        row["operation"] = choice.operation;
        row["implementation"] = choice.implementation;
        row["reason"] = choice.reason;
        value["kernels"].append(std::move(row));
    }
    value["data"] = report.job.data->describe();
    value["losses"] = core::Value(report.result.losses);
    if (report.job.evaluation.data) value["evaluations"] = evaluations_of(report.result);
    value["measured_step_s"] = step_of(report);
    for (const char* list : {"step_times_s", "step_probes_s", "step_lost_pct"})
        value[list] = core::Value::array();
    for (std::size_t step = 0; step < report.result.step_times.size(); ++step) {
        value["step_times_s"].append(report.result.step_times[step].value);
        value["step_probes_s"].append(report.result.conditions[step].probe.value);
        value["step_lost_pct"].append(100 * report.result.conditions[step].lost_share);
    }
    if (report.predicted) {
        value["predicted_step_s"] = report.predicted->step_time.value;
        value["error_pct"] = report.error_percent();
    }
    core::Bytes peak;
    for (const core::Bytes one : report.result.memory.peak) peak = std::max(peak, one);
    value["measured_peak_gib"] = core::to_gibibytes(peak);
    if (report.comparison)
        value["predicted_peak_gib"] = core::to_gibibytes(report.comparison->predicted_peak);
    if (report.checked) {
        value["check"] = core::Value::table();
        value["check"]["reference_losses"] = core::Value(report.checked->reference);
        value["check"]["max_relative_difference"] = report.checked->largest_difference;
        if (!report.checked->bounds.empty()) value["check"]["bounds"] = core::Value(report.checked->bounds);
    }
    value["samples_per_s"] = rates.samples;
    value["tokens_per_s"] = rates.tokens;
    if (rates.mfu > 0) {
        value["mfu"] = rates.mfu;
        value["mfu_causal_half"] = rates.mfu_causal_half;
    }
    value["lost_to_others_pct"] = 100 * report.result.lost_share;
    if (report.comparison) value["comparison"] = exec::to_value(*report.comparison);
    value["remarks"] = core::Value(report.remarks);
    return value;
}

void write_check(const CheckedLosses& checked, std::string_view precision, std::ostream& out) {
    const bool is_conditioned = !checked.bounds.empty();
    out << fmt::format("\nreference: losses differ by at most {:.1e}, relative ({})\n",
                       checked.largest_difference,
                       checked.is_wrong() ? "TOO FAR"
                       : is_conditioned   ? "as far as rounding takes this model"
                                          : fmt::format("equal in {}", precision));
    if (!is_conditioned || checked.is_wrong()) return;
    out << fmt::format(
        "the model magnifies rounding: rounded, the reference itself moves; losses are "
        "checked to {:.1e} at the first step and to {:.1e} at the last\n",
        checked.bounds.front(), checked.bounds.back());
}

void write_text(const ExecutionReport& report, std::ostream& out, std::ostream& err) {
    const ExecutionJob& job = report.job;
    const schedule::Plan& plan = job.plan();
    const exec::RunResult& result = report.result;
    const Rates rates = rates_of(report);
    if (!job.scenario.question.empty()) out << job.scenario.question << "\n\n";
    for (const std::string& remark : report.remarks) err << remark << '\n';
    for (const exec::KernelChoice& choice : result.kernel_choices)
        if (!choice.reason.empty())
            err << (choice.implementation.empty()
                        ? fmt::format("warning: {}\n", choice.reason)
                        : fmt::format("warning: {} runs in our {}, which is slow: {}\n", choice.operation,
                                      choice.implementation, choice.reason));
    out << fmt::format(
        "{}: {} ranks as {} on {} {}, pipeline {} x data {}{} x tensor {}, {}, {} micro-batches of {}\n",
        job.scenario.graph.name, plan.layout.ranks(), report.ranks_are,
        report.request.on_gpu ? 1 : job.here.device_count(),
        report.request.on_gpu ? exec::cuda::describe(exec::cuda::probe_device())
                              : fmt::format("cores ({})", result.instruction_set),
        plan.layout.pipeline, plan.layout.replicas(), schedule::context_words(plan), plan.layout.tensor,
        schedule::schedule_label(plan.schedule), plan.micro_batches, plan.micro_batch);
    out << fmt::format("data: {}\nloss: {}\n", job.data->describe(), losses_line(result.losses));
    if (!result.evaluations.empty())
        out << fmt::format("held-out data: {}, {} batches; loss {:.6f} after step {}\n",
                           job.evaluation.data->describe(), job.evaluation.batches,
                           result.evaluations.back().loss, result.evaluations.back().step);
    if (report.request.is_verbose)
        for (const exec::Evaluated& one : result.evaluations)
            out << fmt::format("  after step {:>4}  held-out loss {:.6f}\n", one.step, one.loss);
    if (report.request.is_verbose)
        for (std::size_t i = 0; i < result.losses.size(); ++i)
            out << fmt::format("  step {:>4}  loss {:.6f}  {}\n",
                               static_cast<std::size_t>(report.first_step) + i, result.losses[i],
                               core::format(result.step_times[i]));
    const bool has_tokens = job.scenario.graph.tokens_per_sample > 0;
    out << fmt::format("{} steps: median {}, least {}, 95th percentile {}; {:.0f} {}/s",
                       result.step_times.size(), core::format(report.times.median),
                       core::format(report.times.least), core::format(report.times.p95),
                       has_tokens ? rates.tokens : rates.samples, has_tokens ? "tokens" : "samples");
    if (rates.mfu > 0) out << fmt::format(", {:.0f}% of the matrix-product rate", 100 * rates.mfu);
    if (rates.mfu_causal_half < rates.mfu)
        out << fmt::format(" ({:.0f}% with causal attention counted half)", 100 * rates.mfu_causal_half);
    out << '\n';
    if (report.times.left_out > 0)
        out << fmt::format(
            "{} of them left out: others had the ranks' cores for more than 2% of their computing time\n",
            report.times.left_out);
    if (report.comparison) out << '\n' << exec::to_text(*report.comparison);
    if (report.checked) write_check(*report.checked, core::name_of(plan.precision.compute), out);
}

// A token whose experts are chosen otherwise has another output: its loss jumps, and no rounding of sums
// explains it.
std::string near_tie(const CheckedLosses& checked) {
    const auto least = std::min_element(checked.router_margins.begin(), checked.router_margins.end());
    constexpr double may_flip = 1e-6;  // some roundings of a probability in fp32, 6e-8 each
    if (least == checked.router_margins.end() || *least >= may_flip) return {};
    return fmt::format(
        "a router chose between experts whose probabilities are {:.1e} apart, in step {}: rounding may "
        "choose otherwise there\n",
        *least, least - checked.router_margins.begin());
}

// A host's own folder may have nothing of it.
std::string place_of_last(const ExecutionRequest& request, const ExecutionJob& job) {
    std::string own = exec::checkpoint_folder(request.checkpoint, job.first_step);
    std::error_code none;
    if (!job.host_folders || std::filesystem::exists(own, none)) return own;
    return exec::checkpoint_folder(job.host_folders->places[job.holders.front().front()], job.first_step);
}

}  // namespace

double ExecutionReport::error_percent() const {
    return 100 * (predicted->step_time.value - times.median.value) / times.median.value;
}

bool ExecutionReport::is_too_far() const {
    return predicted && request.tolerance && std::abs(error_percent()) > *request.tolerance &&
           (!comparison || exec::exceeds_noise(*comparison));
}

void show_report(const ExecutionReport& report, std::ostream& out, std::ostream& err) {
    if (report.request.as_json) out << core::to_json(document_of(report)) << '\n';
    else write_text(report, out, err);
    if (report.is_too_far())
        err << fmt::format("the prediction is {:+.1f}% off, more than {}%\n", report.error_percent(),
                           *report.request.tolerance);
    if (report.checked && report.checked->is_wrong())
        err << fmt::format(
            "losses differ from the reference by {:.1e}, more than {:.0e}{}\n{}",
            report.checked->largest_difference, report.checked->allowed,
            report.checked->bounds.empty() ? "" : " and more than rounding would take this model",
            near_tie(*report.checked));
}

api::ReportPage page_of(const ExecutionReport& report) {
    const ExecutionJob& job = report.job;
    std::ostringstream text, remarks;
    write_text(report, text, remarks);
    std::vector<sim::NamedTimeline> timelines;
    if (report.predicted)
        timelines.push_back({.timeline = report.predicted->timeline,
                             .memory = report.predicted->memory_timeline,
                             .name = "predicted"});
    timelines.push_back({.timeline = report.result.timelines.back(),
                         .memory = report.result.memory,
                         .name = report.predicted ? "measured" : ""});
    return {.kind = api::ReportKind::execution,
            .title = job.scenario.question.empty() ? report.request.plan : job.scenario.question,
            .answer = document_of(report),
            .text = text.str() + remarks.str(),
            .timeline = sim::timeline_columns(job.program, job.scenario.graph, timelines)};
}

void show_interruption(const ExecutionRequest& request, const ExecutionJob& job,
                       const exec::RunResult& result, std::ostream& out, std::ostream& err) {
    const std::int64_t completed = job.first_step + result.interruption->completed;
    const std::string signal = signal_name(result.interruption->signal),
                      place = exec::checkpoint_folder(request.checkpoint, completed);
    err << fmt::format("{}: training ended after step {} of {}, whose checkpoint is {}; --resume goes on\n",
                       signal, completed, job.steps, place);
    if (!request.as_json) return;
    core::Value value = core::Value::table();
    value["interrupted"] = true;
    value["signal"] = signal;
    value["backend"] = request.on_gpu ? "cuda" : "cpu";
    value["ranks"] = job.plan().layout.ranks();
    value["first_step"] = job.first_step;
    value["steps"] = result.step_times.size();
    value["losses"] = core::Value(result.losses);
    if (job.evaluation.data) value["evaluations"] = evaluations_of(result);
    value["checkpoint"] = place;
    out << core::to_json(value) << '\n';
}

void show_written_start(const ExecutionRequest& request, const ExecutionJob& job, std::ostream& out) {
    const std::string place = exec::checkpoint_folder(request.checkpoint, 0),
                      weights = job.initial ? job.initial->describe() : "seeded values";
    if (!request.as_json) {
        out << fmt::format("{}: the state at the beginning, {}\n", place, weights);
        return;
    }
    core::Value value = core::Value::table();
    value["finished"] = true;
    value["backend"] = request.on_gpu ? "cuda" : "cpu";
    value["ranks"] = job.plan().layout.ranks();
    value["first_step"] = 0;
    value["steps"] = 0;
    value["losses"] = core::Value::array();
    value["checkpoint"] = place;
    value["initial_weights"] = weights;
    out << core::to_json(value) << '\n';
}

void show_finished(const ExecutionRequest& request, const ExecutionJob& job, std::ostream& out,
                   std::ostream& err) {
    const std::string place = place_of_last(request, job);
    if (!request.as_json) {
        for (const std::string& remark : job.remarks) err << remark << '\n';
        out << fmt::format(
            "the training is finished: {} holds step {}, --steps asks for {}; nothing was run\n", place,
            job.first_step, job.steps);
        return;
    }
    core::Value value = core::Value::table();
    value["finished"] = true;
    value["backend"] = request.on_gpu ? "cuda" : "cpu";
    value["ranks"] = job.plan().layout.ranks();
    value["first_step"] = job.first_step;
    value["steps"] = 0;
    value["losses"] = core::Value::array();
    value["checkpoint"] = place;
    value["remarks"] = core::Value(job.remarks);
    out << core::to_json(value) << '\n';
}

}  // namespace apps
