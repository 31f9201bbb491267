#include "apps/smsim/calibrate/smsim_locate.h"

#include <optional>
#include <ostream>

#include "api/searched_order.h"
#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/report/comparison.h"
#include "sim/report/explain.h"
#include "sim/scenario.h"
#include "validation/measured/gzip/gzip.h"
#include "validation/measured/step_comparison.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim locate SCENARIO.toml TRACE.json [--set KEY=VALUE]... [--json]\n"
    "\n"
    "Says where a measured step loses against its prediction: the time of a torch.profiler trace beside the "
    "predicted one,\n"
    "by kind of kernel, the largest difference first.\n"
    "\n"
    "  --set KEY=VALUE  change the scenario\n"
    "  --json           one JSON document on stdout\n"
    "\n"
    "TRACE.json is what export_chrome_trace() of torch.profiler wrote of one rank (.json or .json.gz), with "
    "step() "
    "called "
    "after every\n"
    "training step: profile(activities=[CPU, CUDA], schedule=schedule(wait=5, warmup=2, active=3)). Kernels "
    "of a "
    "GPU are\n"
    "compared; without any, operators of the processor.\n"
    "\n"
    "Example:\n"
    "  smsim locate scenarios/llama2_7b_p4d.toml rank0.json\n";

// A step of a large model on a GPU is some 100 MB of JSON.
constexpr std::size_t largest_trace = std::size_t(512) << 20;

std::optional<std::string> read_trace(const std::string& file, core::Diagnostics& diagnostics) {
    std::optional<std::string> bytes = core::read_file(file, diagnostics, {}, {}, largest_trace);
    if (!bytes || !validation::is_gzip(*bytes)) return bytes;
    return validation::unpacked(*bytes, file, diagnostics, largest_trace);
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
        given.error("SCENARIO.toml TRACE.json", "two files are needed, a scenario and a trace",
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
    std::optional<validation::MeasuredStep> measured;
    if (const std::optional<std::string> text = read_trace(file, diagnostics))
        if (const auto trace = core::parse_json(*text, file, diagnostics))
            measured = validation::read_kineto_trace(*trace, file, diagnostics);
    if (!scenario || !measured || !api::search_order(*scenario, diagnostics, order))
        return show(diagnostics, as_json, out, err);
    const schedule::Plan& plan = scenario->file.plan;
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, plan, diagnostics, {.keeps_timeline = true});
    if (const int code = show(diagnostics, as_json, out, err); code != good || !evaluation)
        return code == good ? internal_failure : code;
    const sim::Explanation explanation =
        sim::explain(*evaluation, scenario->graph, scenario->cluster, plan, {.finds_influences = false});
    const validation::StepComparison comparison = validation::compare_step(explanation, *measured);
    if (as_json) out << core::to_json(validation::to_value(comparison, *measured)) << '\n';
    else out << validation::text_of(comparison, *measured);
    return good;
}

}  // namespace apps
