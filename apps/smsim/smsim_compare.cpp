#include "apps/smsim/smsim_compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/searched_order.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/ablation.h"
#include "sim/report/comparison.h"
#include "sim/scenario.h"

namespace apps {

namespace {

const char* const compare_help =
    "Usage: smsim compare A.toml B.toml [C.toml]... [--set KEY=VALUE]... [--json]\n"
    "\n"
    "Why is B faster than A? The difference of their steps, divided over the keys in which they differ: the\n"
    "mean over all orders of changing them one by one (Shapley values), so that the parts add up and depend\n"
    "on no order. Keys that make a valid plan only together are one part. Further files are compared with "
    "A.\n"
    "\n"
    "  --set KEY=VALUE      change a key of every scenario\n"
    "  --json               one JSON document: step_time_s[], parts[] {key, seconds} of A and B,\n"
    "                       comparisons[] of A and each other file\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim compare scenarios/bert_large_p3.toml scenarios/bert_large_p3dn.toml\n";

const char* const ablate_help =
    "Usage: smsim ablate SCENARIO.toml [--only NAME[,NAME...]] [--set KEY=VALUE]... [--json]\n"
    "\n"
    "What each optimisation of the plan is worth: every one switched off alone, and one after another from\n"
    "none to all (attention, overlap, communication, schedule, recomputation, sharding, precision, "
    "framework).\n"
    "\n"
    "  --only NAME,...      these alone, added in this order\n"
    "  --set KEY=VALUE      change a key of the scenario\n"
    "  --json               one JSON document: step_time_s, without[], added[]\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine\n"
    "failure.\n"
    "\n"
    "Example:\n"
    "  smsim ablate scenarios/llama2_7b_p4d.toml\n";

struct Request {
    std::vector<std::string> files, set, only;
    bool as_json = false, wants_help = false;
};

Request read_arguments(const std::vector<std::string>& arguments, const OptionNames& names,
                       core::Diagnostics& diagnostics) {
    Options options(arguments, names, diagnostics);
    return {options.positional(), options.all("--set"), options.list("--only"), options.has("--json"),
            options.has("--help")};
}

std::optional<core::Value> load(const std::string& path, const Request& request,
                                core::Diagnostics& diagnostics) {
    std::optional<core::Value> document = sim::load_scenario_document(path, diagnostics);
    if (!document) return std::nullopt;
    for (const std::string& text : request.set)
        if (const auto assignment = sim::parse_assignment(text, "--set", diagnostics))
            sim::assign(*document, *assignment, diagnostics);
    sim::anchor_paths(*document, path);
    return document;
}

struct Prediction {
    sim::Scenario scenario;
    sim::Evaluation evaluation;
};

std::optional<Prediction> predict(const core::Value& document, const std::string& path,
                                  core::Diagnostics& diagnostics) {
    std::optional<sim::Scenario> scenario = sim::read_scenario(document, path, diagnostics);
    std::string explanation;
    if (!scenario || !search_order(*scenario, diagnostics, explanation)) return std::nullopt;
    // Long steps follow from their steady state, exactly: mixtures of two scenarios are many.
    constexpr int micro_batches_of_a_mixture = 32;
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, scenario->file.plan, diagnostics,
                      {.most_micro_batches = micro_batches_of_a_mixture});
    if (!evaluation) return std::nullopt;
    return Prediction{std::move(*scenario), std::move(*evaluation)};
}

std::string text_of(const core::Value& value) {
    if (value.is_null()) return "-";
    if (value.is_string()) return value.string();
    std::string text = core::to_json(value, 0);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

std::string key_of(const sim::ComparedPart& part) {
    std::string key;
    for (const sim::Difference& one : part.keys) key += (key.empty() ? "" : " + ") + one.key;
    return key;
}

core::Value parts_value(const sim::Comparison& comparison) {
    core::Value parts = core::Value::array();
    for (const sim::ComparedPart& part : comparison.parts) {
        core::Value entry = core::Value::table();
        entry["key"] = key_of(part);
        entry["seconds"] = part.difference.value;
        core::Value changes = core::Value::array();
        for (const sim::Difference& one : part.keys) {
            core::Value change = core::Value::table();
            change["key"] = one.key;
            change["from"] = one.from;
            change["to"] = one.to;
            changes.append(std::move(change));
        }
        entry["changes"] = std::move(changes);
        parts.append(std::move(entry));
    }
    return parts;
}

// A waterfall: from one step time to the other, a bar for every part.
std::string waterfall(const std::string& from, const std::string& to, const sim::Comparison& comparison) {
    std::string text =
        fmt::format("{}: {} a step\n{}: {} a step, {:.3f} times as fast\n\n", from,
                    core::format(comparison.a), to, core::format(comparison.b), comparison.a / comparison.b);
    if (comparison.parts.empty()) return text + "They differ in no key that a step depends on.\n";
    double widest = 0;
    for (const sim::ComparedPart& part : comparison.parts)
        widest = std::max(widest, std::abs(part.difference.value));
    constexpr int longest_bar = 30;
    for (const sim::ComparedPart& part : comparison.parts) {
        const double share = widest > 0 ? std::abs(part.difference.value) / widest : 0;
        const bool is_faster = part.difference.value < 0;
        text += fmt::format("  {:>11} {:<{}} {}\n", (is_faster ? "" : "+") + core::format(part.difference),
                            std::string(std::size_t(std::lround(share * longest_bar)), is_faster ? '-' : '+'),
                            longest_bar, key_of(part));
        for (const sim::Difference& one : part.keys)
            text += fmt::format("  {:>{}}{}: {} -> {}\n", "", longest_bar + 15,
                                part.keys.size() > 1 ? one.key : std::string("here"), text_of(one.from),
                                text_of(one.to));
    }
    text += fmt::format("  {:>11} in all", (comparison.b >= comparison.a ? "+" : "") +
                                               core::format(comparison.b - comparison.a));
    text += comparison.is_exact ? ", the mean over all orders" : ", the mean over sampled orders";
    return text + fmt::format(" ({} predictions)\n", comparison.predictions);
}

}  // namespace

int run_compare_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const bool as_json = wants_json(arguments);
    const Request request = read_arguments(arguments, {{"--set"}, {"--json", "--help"}}, diagnostics);
    if (request.wants_help) {
        out << compare_help;
        return good;
    }
    if (request.files.size() < 2)
        diagnostics.error({}, "scenario", "two scenarios are needed to compare",
                          "smsim compare A.toml B.toml; smsim compare --help shows an example");
    std::vector<core::Value> documents;
    for (const std::string& file : request.files)
        if (auto document = load(file, request, diagnostics)) documents.push_back(std::move(*document));
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    const auto step_of = [&](const core::Value& document, core::Diagnostics& told) {
        const std::optional<Prediction> prediction = predict(document, request.files.front(), told);
        return prediction ? std::optional(prediction->evaluation.step_time) : std::nullopt;
    };
    core::Value result = core::Value::table();
    std::string text;
    for (std::size_t i = 1; i < documents.size(); ++i) {
        const std::optional<sim::Comparison> comparison =
            sim::compare(documents.front(), documents[i], step_of, diagnostics);
        if (!comparison) return show(diagnostics, as_json, out, err);
        if (i == 1) {
            result["step_time_s"] = core::Value::array();
            result["step_time_s"].append(comparison->a.value);
            result["parts"] = parts_value(*comparison);
            result["comparisons"] = core::Value::array();
        }
        result["step_time_s"].append(comparison->b.value);
        core::Value entry = core::Value::table();
        entry["from"] = request.files.front();
        entry["to"] = request.files[i];
        entry["parts"] = parts_value(*comparison);
        entry["exact"] = comparison->is_exact;
        entry["predictions"] = comparison->predictions;
        result["comparisons"].append(std::move(entry));
        text += (text.empty() ? "" : "\n") + waterfall(request.files.front(), request.files[i], *comparison);
    }
    if (as_json) out << core::to_json(result) << '\n';
    else out << text;
    return good;
}

int run_ablate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const bool as_json = wants_json(arguments);
    const Request request =
        read_arguments(arguments, {{"--set", "--only"}, {"--json", "--help"}}, diagnostics);
    if (request.wants_help) {
        out << ablate_help;
        return good;
    }
    if (request.files.size() != 1)
        diagnostics.error({}, "scenario", "one scenario is needed",
                          "smsim ablate SCENARIO.toml; smsim ablate --help shows an example");
    std::optional<core::Value> document;
    if (request.files.size() == 1) document = load(request.files.front(), request, diagnostics);
    if (diagnostics.has_errors() || !document) return show(diagnostics, as_json, out, err);
    const auto step_of = [&](const core::Value& changed,
                             core::Diagnostics& told) -> std::optional<sim::AblatedStep> {
        const std::optional<Prediction> prediction = predict(changed, request.files.front(), told);
        if (!prediction) return std::nullopt;
        const sim::Evaluation& evaluation = prediction->evaluation;
        return sim::AblatedStep{evaluation.step_time, evaluation.peak_memory, evaluation.fits};
    };
    const std::optional<sim::Scenario> scenario =
        sim::read_scenario(*document, request.files.front(), diagnostics);
    std::optional<sim::Ablation> ablation;
    if (scenario) ablation = sim::ablate(*document, scenario->file.plan, step_of, diagnostics, request.only);
    if (!ablation) return show(diagnostics, as_json, out, err);
    if (as_json) out << core::to_json(sim::to_value(*ablation)) << '\n';
    else out << sim::text_of(*ablation);
    return ablation->full.fits ? good : no_plan;
}

}  // namespace apps
