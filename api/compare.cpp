#include "api/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "api/output.h"
#include "api/searched_order.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/evaluate.h"
#include "sim/report/ablation.h"
#include "sim/report/comparison.h"
#include "sim/scenario.h"

namespace api {

namespace {

std::optional<core::Value> load(const ScenarioSource& source, core::Diagnostics& diagnostics) {
    std::optional<core::Value> document = load_scenario(source, diagnostics);
    if (document) sim::anchor_paths(*document, source.path);
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
    return json_of(value);
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

core::Value entry_of(const sim::Comparison& comparison, const std::string& from, const std::string& to) {
    core::Value entry = core::Value::table();
    entry["from"] = from;
    entry["to"] = to;
    entry["parts"] = parts_value(comparison);
    entry["exact"] = comparison.is_exact;
    entry["predictions"] = comparison.predictions;
    return entry;
}

}  // namespace

Reply compare(const std::vector<ScenarioSource>& scenarios, core::Diagnostics diagnostics) {
    if (scenarios.size() < 2)
        diagnostics.error({}, "scenario", "two scenarios are needed to compare",
                          "smsim compare A.toml B.toml; smsim compare --help shows an example");
    std::vector<core::Value> documents;
    for (const ScenarioSource& scenario : scenarios)
        if (auto document = load(scenario, diagnostics)) documents.push_back(std::move(*document));
    if (diagnostics.has_errors()) return refusal(std::move(diagnostics));

    const ScenarioSource& first = scenarios.front();
    const auto step_of = [&](const core::Value& document, core::Diagnostics& told) {
        const std::optional<Prediction> prediction = predict(document, first.path, told);
        return prediction ? std::optional(prediction->evaluation.step_time) : std::nullopt;
    };
    Reply reply{.document = core::Value::table()};
    core::Value& result = reply.document;
    for (std::size_t i = 1; i < documents.size(); ++i) {
        const std::optional<sim::Comparison> comparison =
            sim::compare(documents.front(), documents[i], step_of, diagnostics);
        if (!comparison) return refusal(std::move(diagnostics));
        const std::string &from = name_of(first), &to = name_of(scenarios[i]);
        if (i == 1) {
            result["step_time_s"] = core::Value::array();
            result["step_time_s"].append(comparison->a.value);
            result["parts"] = parts_value(*comparison);
            result["comparisons"] = core::Value::array();
        }
        result["step_time_s"].append(comparison->b.value);
        result["comparisons"].append(entry_of(*comparison, from, to));
        reply.text += (i == 1 ? "" : "\n") + waterfall(from, to, *comparison);
    }
    return reply;
}

Reply ablate(const ScenarioSource& source, const std::vector<std::string>& only,
             core::Diagnostics diagnostics) {
    const std::optional<core::Value> document = load(source, diagnostics);
    if (diagnostics.has_errors() || !document) return refusal(std::move(diagnostics));
    const auto step_of = [&](const core::Value& changed,
                             core::Diagnostics& told) -> std::optional<sim::AblatedStep> {
        const std::optional<Prediction> prediction = predict(changed, source.path, told);
        if (!prediction) return std::nullopt;
        const sim::Evaluation& evaluation = prediction->evaluation;
        return sim::AblatedStep{evaluation.step_time, evaluation.peak_memory, evaluation.fits};
    };
    const std::optional<sim::Scenario> scenario = sim::read_scenario(*document, source.path, diagnostics);
    std::optional<sim::Ablation> ablation;
    if (scenario) ablation = sim::ablate(*document, scenario->file.plan, step_of, diagnostics, only);
    if (!ablation) return refusal(std::move(diagnostics));
    return {.outcome = ablation->full.fits ? Outcome::good : Outcome::no_plan,
            .document = sim::to_value(*ablation),
            .text = sim::text_of(*ablation)};
}

}  // namespace api
