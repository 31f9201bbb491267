#include "apps/smsim/smsim_model.h"

#include <fmt/core.h>

#include <optional>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "model/load.h"
#include "model/operators/cost.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim model MODEL [--seq-len S] [--image-size X] [--operators] [--allow-unknown] [--json]\n"
    "       smsim model --list\n"
    "\n"
    "Parameters, FLOPs and a table per layer of one model. MODEL is a catalogue name, a Hugging Face "
    "config.json,\n"
    "an .onnx or a .toml description.\n"
    "\n"
    "  --seq-len S      tokens per sample (default: what the model was published with)\n"
    "  --image-size X   pixels of a square image (vision models)\n"
    "  --operators      one line per operator instead of one per layer\n"
    "  --allow-unknown  price operators of an ONNX graph that have no counterpart by their bytes\n"
    "  --list           the catalogue\n"
    "  --json           one JSON document on stdout\n"
    "\n"
    "Example:\n"
    "  smsim model llama-2-7b --seq-len 4096\n";

struct Row {
    std::string name;
    model::OperatorRange operators;
};

core::Flops forward_flops(const model::ModelGraph& graph, model::OperatorRange range) {
    return model::phase_cost(graph, range, model::Phase::forward, model::CostContext{}).flops;
}

std::vector<Row> rows_of(const model::ModelGraph& graph, bool per_operator) {
    std::vector<Row> rows;
    if (per_operator)
        for (std::int32_t i = 0; i < core::count_of(graph.operators); ++i) {
            const model::Operator& op = graph.operators[i];
            rows.push_back({fmt::format("{} ({})", op.name, model::name_of(op.kind)), {i, i + 1}});
        }
    else
        for (const model::Unit& unit : graph.units) rows.push_back({unit.name, unit.operators});
    return rows;
}

core::Value describe(const model::ModelGraph& graph, bool per_operator) {
    core::Value document;
    document["model"] = graph.name;
    document["family"] = graph.family;
    document["parameters"] = model::parameter_count(graph);
    if (const std::int64_t trained = model::trained_parameter_count(graph);
        trained != model::parameter_count(graph))
        document["trained_parameters"] = trained;
    document["forward_flops_per_sample"] = model::forward_flops_per_sample(graph).value;
    document["tokens_per_sample"] = graph.tokens_per_sample;
    core::Value layers = core::Value::array();
    for (const Row& row : rows_of(graph, per_operator)) {
        core::Value layer;
        layer["name"] = row.name;
        layer["parameters"] = model::parameter_count(graph, row.operators);
        layer["forward_flops_per_sample"] = forward_flops(graph, row.operators).value;
        layers.append(std::move(layer));
    }
    document["layers"] = std::move(layers);
    core::Value assumptions = core::Value::array();
    for (const std::string& assumption : graph.assumptions) assumptions.append(assumption);
    document["assumptions"] = std::move(assumptions);
    return document;
}

void print(const model::ModelGraph& graph, bool per_operator, std::ostream& out) {
    out << fmt::format("{} ({})\n", graph.name, graph.family);
    out << fmt::format("  parameters          {}\n", core::with_thousands(model::parameter_count(graph)));
    out << fmt::format("  forward             {:.4g} GFLOP per sample",
                       model::forward_flops_per_sample(graph).value / 1e9);
    if (graph.tokens_per_sample > 0) out << fmt::format(" of {} tokens", graph.tokens_per_sample);
    out << "\n\n";
    core::TextTable table({per_operator ? "operator" : "layer", "parameters", "forward GFLOP"});
    const std::vector<Row> rows = rows_of(graph, per_operator);
    // Runs of equal layers are one line: a table of 96 equal rows tells nothing.
    for (std::size_t i = 0; i < rows.size();) {
        const std::int64_t parameters = model::parameter_count(graph, rows[i].operators);
        const double gflop = forward_flops(graph, rows[i].operators).value / 1e9;
        std::size_t j = i + 1;
        while (!per_operator && j < rows.size() &&
               model::parameter_count(graph, rows[j].operators) == parameters &&
               forward_flops(graph, rows[j].operators).value / 1e9 == gflop)
            ++j;
        const std::string name =
            j - i > 1 ? fmt::format("{} .. {} ({} equal)", rows[i].name, rows[j - 1].name, j - i)
                      : rows[i].name;
        table.add({name, core::with_thousands(parameters), fmt::format("{:.4g}", gflop)});
        i = j;
    }
    out << table.text(text_width());
    std::string assumptions;
    for (const std::string& assumption : graph.assumptions) assumptions += "  assumed: " + assumption + '\n';
    out << for_stdout(assumptions);
}

}  // namespace

int run_model_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments,
                    {.with_value = {"--seq-len", "--image-size"},
                     .flags = {"--help", "--json", "--operators", "--allow-unknown", "--list"}},
                    diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    model::LoadOptions load;
    load.sequence_length = options.integer("--seq-len", 1, 1 << 28);
    load.image_size = options.integer("--image-size", 1, 1 << 14);
    load.allow_unknown = options.has("--allow-unknown");
    const std::string reference = options.only_positional(
        "MODEL", "model", "smsim model --list shows the catalogue", !options.has("--list"));
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (options.has("--list")) {
        if (as_json) out << core::to_json(core::Value(model::catalogue_names())) << '\n';
        else
            for (const std::string& name : model::catalogue_names()) out << name << '\n';
        return good;
    }
    const bool per_operator = options.has("--operators");
    const std::optional<model::ModelGraph> graph =
        model::load_model(reference, load, diagnostics, {}, "MODEL");
    if (const int code = show(diagnostics, as_json, out, err); code != good || !graph)
        return code == good ? internal_failure : code;
    if (as_json) out << core::to_json(describe(*graph, per_operator)) << '\n';
    else print(*graph, per_operator, out);
    return good;
}

}  // namespace apps
