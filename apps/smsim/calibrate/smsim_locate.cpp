#include "apps/smsim/calibrate/smsim_locate.h"

#include <cmath>
#include <optional>
#include <ostream>

#include <fmt/core.h>

#include "api/searched_order.h"
#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "model/model_graph.h"
#include "model/operators/cost.h"
#include "sim/report/comparison.h"
#include "sim/report/explain.h"
#include "sim/scenario.h"
#include "validation/measured/measured_file.h"
#include "validation/measured/step_comparison.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim locate SCENARIO.toml MEASURED [--set KEY=VALUE]... [--json]\n"
    "\n"
    "Says where a measured step loses against its prediction: measured times beside predicted ones by kind "
    "of "
    "work, the\n"
    "largest difference first.\n"
    "\n"
    "  --set KEY=VALUE  change the scenario\n"
    "  --json           one JSON document on stdout\n"
    "\n"
    "MEASURED is of one rank, packed by gzip or not:\n"
    "  a trace of torch.profiler, as export_chrome_trace() writes it, with step() called after every "
    "training\n"
    "  step: profile(activities=[CPU, CUDA], schedule=schedule(wait=5, warmup=2, active=3)). Kernels of a "
    "GPU\n"
    "  are compared; without any, operators of the processor.\n"
    "  a Chakra execution trace (.et) of chakra_converter, also with the sizes of collectives.\n"
    "  a report of DeepSpeed's flops profiler (\"flops_profiler\": {\"enabled\": true, \"output_file\": "
    "...}):\n"
    "  the forward pass of one micro-batch, module by module.\n"
    "\n"
    "Example:\n"
    "  smsim locate scenarios/llama2_7b_p4d.toml rank0.json\n";

// Vocabularies are padded and heads tied; beyond that it is another model.
constexpr double most_apart = 0.05;

// What a device that has the whole model and one micro-batch's whole samples has of them.
validation::PredictedStep predicted_step(const sim::Scenario& scenario, const sim::Evaluation& evaluation) {
    const schedule::Plan& plan = scenario.file.plan;
    validation::PredictedStep predicted;
    predicted.explanation =
        sim::explain(evaluation, scenario.graph, scenario.cluster, plan, {.finds_influences = false});
    predicted.micro_batches = plan.micro_batches;
    const schedule::ParallelLayout& layout = plan.layout;
    if (layout.replicas() == layout.ranks() && layout.expert == 1) {
        predicted.parameters = static_cast<double>(model::parameter_count(scenario.graph));
        predicted.forward_flops = model::forward_flops_per_sample(scenario.graph).value * plan.micro_batch;
    }
    return predicted;
}

}  // namespace

int run_locate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options given(arguments, {.with_value = {"--set"}, .flags = {"--help", "--json"}}, diagnostics);
    if (given.has("--help")) {
        out << help;
        return good;
    }
    constexpr std::size_t files = 2;
    if (given.positional().size() != files)
        given.error("SCENARIO.toml MEASURED", "two files are needed, a scenario and a measurement",
                    "see smsim locate --help");
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const std::string &path = given.positional()[0], &file = given.positional()[1];
    std::optional<core::Value> document = sim::load_scenario_document(path, diagnostics);
    if (diagnostics.has_errors() || !document) return show(diagnostics, as_json, out, err);
    for (const std::string& text : given.all("--set"))
        if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    std::optional<sim::Scenario> scenario = sim::read_scenario(*document, path, diagnostics);
    std::string order;
    const std::optional<validation::MeasuredStep> measured =
        validation::read_measured_file(file, diagnostics);
    if (!scenario || !measured || !api::search_order(*scenario, diagnostics, order))
        return show(diagnostics, as_json, out, err);
    const schedule::Plan& plan = scenario->file.plan;
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, plan, diagnostics, {.keeps_timeline = true});
    if (!evaluation) {
        const int code = show(diagnostics, as_json, out, err);
        return code == good ? internal_failure : code;
    }
    const validation::StepComparison comparison =
        validation::compare_step(predicted_step(*scenario, *evaluation), *measured);
    for (const validation::StepComparison::Size& size : comparison.sizes)
        if (std::abs(size.measured / size.predicted - 1) > most_apart)
            diagnostics.warning({file, 0, 0}, size.name,
                                fmt::format("{:.5g} {} were measured, the scenario's model has {:.5g}",
                                            size.measured, size.name, size.predicted),
                                "compare with a scenario of the same model and micro-batch");
    if (const int code = show(diagnostics, as_json, out, err); code != good) return code;
    if (as_json) out << core::to_json(validation::to_value(comparison, *measured)) << '\n';
    else out << validation::text_of(comparison, *measured);
    return good;
}

}  // namespace apps
