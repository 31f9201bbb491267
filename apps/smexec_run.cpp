#include "apps/smexec_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "cluster/load.h"
#include "core/document.h"
#include "exec/compare.h"
#include "exec/profile.h"
#include "exec/reference.h"
#include "exec/run.h"
#include "model/cost.h"
#include "schedule/partition.h"
#include "sim/evaluate.h"
#include "sim/scenario.h"
#include "sim/trace.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smexec PLAN.toml [--steps N] [--data FILE] [--check] [--tolerance PCT] [--trace FILE] [--json] [--verbose]\n"
    "       smexec profile [--model MODEL] --out FILE      measures this machine, or a model's operators on it\n"
    "\n"
    "Runs a plan on this machine, every rank at its instructions, and compares step time and memory with the simulator's prediction.\n"
    "The prediction is made first, from operator times measured here in a few seconds.\n"
    "\n"
    "  --backend cpu        where to compute (cpu)\n"
    "  --ranks-from threads what a rank is (threads of this process)\n"
    "  --steps N            training steps; the first two are left out of the times\n"
    "  --data FILE          text as bytes, or IDX images; without it the plan's data, or seeded synthetic samples\n"
    "  --check              also train the slow single-rank reference and compare the losses (at most 1e-5 apart, relative)\n"
    "  --tolerance PCT      exit 3 when the measured step differs by more from the prediction\n"
    "  --trace FILE         the measured timeline as Chrome trace JSON, for ui.perfetto.dev\n"
    "  --json               one JSON document on stdout\n"
    "  --verbose            losses and times of every step\n"
    "\n"
    "Exit codes: 0 good, 2 wrong input, 3 does not fit or tolerance exceeded, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smexec scenarios/cpu_gpt_pipeline2.toml --steps 20 --check\n";

constexpr double largest_loss_difference = 1e-5;

struct Request {
    std::string plan, trace;
    std::optional<std::string> data;
    std::optional<std::int64_t> steps;
    std::optional<double> tolerance;
    bool checks = false, as_json = false, is_verbose = false;
};

std::optional<Request> parse(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments, {{"--backend", "--ranks-from", "--steps", "--data", "--tolerance", "--trace"}, {"--check", "--json", "--verbose", "--help"}},
                    diagnostics);
    Request request;
    request.as_json = options.has("--json");
    request.checks = options.has("--check");
    request.is_verbose = options.has("--verbose");
    request.data = options.text("--data");
    request.trace = options.text("--trace").value_or("");
    request.steps = options.integer("--steps", 1, 1000000);
    request.tolerance = options.real("--tolerance", 0, 1e6);
    const auto only = [&](const char* name, const char* supported, const std::vector<std::string>& known) {
        const std::optional<std::string> chosen = options.text(name);
        if (!chosen || *chosen == supported) return;
        const bool is_known = std::find(known.begin(), known.end(), *chosen) != known.end();
        options.error(name, fmt::format("{} {} {}", name, core::in_quotes(*chosen), is_known ? "is not available in this build" : "is unknown"),
                      fmt::format("use {}", supported));
    };
    only("--backend", "cpu", {"cuda"});
    only("--ranks-from", "threads", {"mpi", "env"});
    if (options.positional().size() != 1)
        diagnostics.error({}, "", options.positional().empty() ? "no plan is given" : "more than one plan is given",
                          "smexec PLAN.toml; smexec --help shows an example");
    else request.plan = options.positional()[0];
    if (diagnostics.has_errors()) return std::nullopt;
    return request;
}

std::string data_path(const Request& request, const schedule::PlanFile& file) {
    if (request.data) return *request.data;
    if (file.training.data.empty()) return {};
    const std::filesystem::path path(file.training.data);
    return path.is_absolute() ? path.string() : (std::filesystem::path(file.path).parent_path() / path).string();
}

std::string losses_line(const std::vector<double>& losses) {
    if (losses.size() == 1) return fmt::format("{:.6f}", losses[0]);
    return fmt::format("{:.6f} at the first step, {:.6f} at the last", losses.front(), losses.back());
}

struct Checked {
    std::vector<double> reference;
    double largest_difference = 0;
};

Checked check(const sim::Scenario& scenario, const std::shared_ptr<const exec::DataSource>& data, const exec::RunOptions& options,
              const std::vector<double>& losses) {
    Checked result;
    result.reference = exec::run_reference(scenario.graph, scenario.file.plan, data, {options.steps, options.seed}).losses;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const double difference = std::abs(losses[i] - result.reference[i]) / std::max(1e-30, std::abs(result.reference[i]));
        // A loss that is no number is not near to anything.
        result.largest_difference = std::isfinite(difference) ? std::max(result.largest_difference, difference) : std::numeric_limits<double>::infinity();
    }
    return result;
}

core::Value array_of(const std::vector<double>& numbers) {
    core::Value array = core::Value::array();
    for (const double number : numbers) array.append(number);
    return array;
}

}  // namespace

const char* smexec_help() { return help; }

int run_smexec(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << help;
        return good;
    }
    core::Diagnostics diagnostics;
    const std::optional<Request> request = parse(arguments, diagnostics);
    if (!request) return show(diagnostics, as_json, out, err);
    const std::optional<core::Value> document = sim::load_scenario_document(request->plan, diagnostics);
    if (!document) return show(diagnostics, as_json, out, err);
    std::optional<sim::Scenario> scenario = sim::read_scenario(*document, request->plan, diagnostics);
    if (!scenario) return show(diagnostics, as_json, out, err);

    schedule::Plan& plan = scenario->file.plan;
    const model::ModelGraph& graph = scenario->graph;
    exec::check_runnable(plan, graph, diagnostics);
    const schedule::Training& training = scenario->file.training;
    std::shared_ptr<const exec::DataSource> data = exec::load_data(data_path(*request, scenario->file), request->data ? "" : training.data_format,
                                                                   training.seed, graph, diagnostics, {request->plan, 0, 0});
    // The prediction is for the machine that runs, whatever the plan was made for.
    cluster::Cluster here = scenario->cluster;
    std::vector<std::string> remarks;
    if (here.instance.device.has_concurrent_streams) {
        remarks.push_back(fmt::format("the plan is for {}; it is predicted for and run on local-cpu", here.instance.name));
        if (std::optional<cluster::InstanceType> local = cluster::load_instance("local-cpu", diagnostics)) {
            here.instance = std::move(*local);
            here.nodes = 1;
        }
    }
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    show(diagnostics, false, out, err);
    if (plan.partition.first_units.empty())
        if (std::optional<schedule::Partition> partition = schedule::complete_partition(plan, graph)) plan.partition = std::move(*partition);

    exec::apply(exec::profile_plan(plan, graph, data), here.instance);
    sim::EvaluateOptions evaluate_options;
    evaluate_options.keeps_timeline = true;
    const std::optional<sim::Evaluation> predicted = sim::evaluate(graph, here, plan, diagnostics, evaluate_options);
    if (!predicted || !predicted->program) return show(diagnostics, as_json, out, err);
    if (!predicted->fits) {
        err << "does not fit: " << predicted->tightest << '\n';
        return no_plan;
    }

    exec::RunOptions options;
    options.steps = static_cast<int>(request->steps.value_or(training.steps));
    options.warm_up_steps = std::min(2, options.steps - 1);
    options.seed = training.seed;
    const exec::RunResult result = exec::run(*predicted->program, graph, data, options);
    const exec::StepTimes times = exec::summarize(result, options.warm_up_steps);
    const exec::Comparison comparison = exec::compare(*predicted->program, predicted->timeline, predicted->memory_timeline, predicted->step_time,
                                                      exec::median_timeline(result, options.warm_up_steps), result.memory, times.median);
    const double error = 100 * (predicted->step_time.value - times.median.value) / times.median.value;
    const double samples = plan.global_batch(), tokens = samples * static_cast<double>(std::max<std::int64_t>(1, graph.tokens_per_sample));
    const int cores = std::min(plan.layout.ranks(), here.device_count());
    const double flops = 3 * model::forward_flops_per_sample(graph).value * samples / times.median.value;
    const double mfu = flops / (here.instance.device.peak.at(core::DataType::fp32).value * cores);
    std::optional<Checked> checked;
    if (request->checks) checked = check(*scenario, data, options, result.losses);
    if (!request->trace.empty()) core::write_file_atomically(request->trace, sim::chrome_trace(*predicted->program, result.timelines.back(), result.memory));

    constexpr double notable_loss = 0.05;
    if (plan.layout.ranks() <= here.device_count() && result.lost_share > notable_loss)
        remarks.push_back(
            fmt::format("other processes had the ranks' cores for {:.0f}% of their computing time: the measured step says little about the prediction",
                        100 * result.lost_share));
    const bool is_far = request->tolerance && std::abs(error) > *request->tolerance;
    const bool is_wrong = checked && !(checked->largest_difference <= largest_loss_difference);
    if (as_json) {
        core::Value value = core::Value::table();
        value["backend"] = "cpu";
        value["ranks"] = plan.layout.ranks();
        value["steps"] = options.steps;
        value["instructions"] = result.instruction_set;
        value["data"] = data->describe();
        value["losses"] = array_of(result.losses);
        value["measured_step_s"] = core::Value::table();
        value["measured_step_s"]["median"] = times.median.value;
        value["measured_step_s"]["min"] = times.least.value;
        value["measured_step_s"]["p95"] = times.p95.value;
        value["predicted_step_s"] = predicted->step_time.value;
        value["error_pct"] = error;
        value["measured_peak_gib"] = core::to_gibibytes(comparison.measured_peak);
        value["predicted_peak_gib"] = core::to_gibibytes(comparison.predicted_peak);
        if (checked) {
            value["check"] = core::Value::table();
            value["check"]["reference_losses"] = array_of(checked->reference);
            value["check"]["max_relative_difference"] = checked->largest_difference;
        }
        value["samples_per_s"] = samples / times.median.value;
        value["tokens_per_s"] = tokens / times.median.value;
        value["mfu"] = mfu;
        value["lost_to_others_pct"] = 100 * result.lost_share;
        value["comparison"] = exec::to_value(comparison);
        value["remarks"] = core::Value(remarks);
        out << core::to_json(value) << '\n';
    } else {
        if (!scenario->question.empty()) out << scenario->question << "\n\n";
        for (const std::string& remark : remarks) err << remark << '\n';
        out << fmt::format("{}: {} ranks as threads on {} cores ({}), pipeline {} x data {} x tensor {}, {}, {} micro-batches of {}\n", graph.name,
                           plan.layout.ranks(), here.device_count(), result.instruction_set, plan.layout.pipeline, plan.layout.data, plan.layout.tensor,
                           plan.schedule, plan.micro_batches, plan.micro_batch);
        out << fmt::format("data: {}\nloss: {}\n", data->describe(), losses_line(result.losses));
        if (request->is_verbose)
            for (std::size_t i = 0; i < result.losses.size(); ++i)
                out << fmt::format("  step {:>4}  loss {:.6f}  {}\n", i, result.losses[i], core::format(result.step_times[i]));
        out << fmt::format("{} steps: median {}, least {}, 95th percentile {}; {:.0f} {}/s, {:.0f}% of the matrix-product rate\n\n", options.steps,
                           core::format(times.median), core::format(times.least), core::format(times.p95),
                           (graph.tokens_per_sample > 0 ? tokens : samples) / times.median.value, graph.tokens_per_sample > 0 ? "tokens" : "samples",
                           100 * mfu);
        out << exec::to_text(comparison);
        if (checked)
            out << fmt::format("\nreference: losses differ by at most {:.1e}, relative ({})\n", checked->largest_difference,
                               is_wrong ? "TOO FAR" : "equal in fp32");
    }
    if (is_far) err << fmt::format("the prediction is {:+.1f}% off, more than {}%\n", error, *request->tolerance);
    if (is_wrong) err << fmt::format("losses differ from the reference by {:.1e}, more than {:.0e}\n", checked->largest_difference, largest_loss_difference);
    return is_far || is_wrong ? no_plan : good;
}

}  // namespace apps
