// An explanation for people and for machines.
#include <fmt/core.h>

#include <cmath>

#include "core/diagnostics.h"
#include "sim/report/explain.h"

namespace sim {

namespace {

// Below this nothing is printed one by one.
constexpr double least_change = 0.0005;

double share(core::Seconds part, core::Seconds whole) {
    return whole.value > 0 ? 100 * part.value / whole.value : 0;
}

std::string source_words(const Influence& influence) {
    std::string text = influence.confidence;
    if (!influence.source.empty()) text += (text.empty() ? "" : ": ") + influence.source;
    if (!influence.date.empty()) text += fmt::format(" ({})", influence.date);
    return text.empty() ? "no source" : text;
}

void append_influences(std::string& text, const std::vector<Influence>& influences, bool are_constants) {
    std::size_t without = 0;
    for (const Influence& influence : influences) {
        if (std::abs(influence.step_change) < least_change &&
            std::abs(influence.peak_change) < least_change) {
            ++without;
            continue;
        }
        const std::string memory = std::abs(influence.peak_change) < least_change
                                       ? std::string(8, ' ')
                                       : fmt::format("{:+7.2f} %", 100 * influence.peak_change).substr(0, 9);
        text += fmt::format(
            "  {:+7.2f} % {:>9}  {:<30} {}{}\n", 100 * influence.step_change, memory, influence.name,
            are_constants ? fmt::format("= {:g}: ", influence.value) : std::string(), influence.meaning);
        text += fmt::format("                       {}\n", source_words(influence));
    }
    if (without > 0) text += fmt::format("  {} others move neither by 0.05 %\n", without);
}

}  // namespace

std::string text_of(const Explanation& explanation) {
    const core::Seconds step = explanation.step;
    std::string text =
        fmt::format("Explanation: rank {} is the critical one; shares are of its step of {}\n\n",
                    explanation.rank, core::format(step));
    text += fmt::format(
        "Compute {} ({:.1f} %), update {} ({:.1f} %), bubble {} ({:.1f} %); of compute, waiting for the host "
        "{} ({:.1f} %)\n",
        core::format(explanation.compute_busy), share(explanation.compute_busy, step),
        core::format(explanation.update), share(explanation.update, step), core::format(explanation.bubble),
        share(explanation.bubble, step), core::format(explanation.host), share(explanation.host, step));
    text +=
        "\nDevice time by kind of operator\n  kind                    forward     backward    recompute   "
        "share\n";
    for (const OperatorTime& time : explanation.operators) {
        constexpr double least_shown = 0.05;  // % of the step
        if (share(time.sum(), step) < least_shown) continue;
        text += fmt::format("  {:<20} {:>10}  {:>11}  {:>11}  {:>5.1f} %\n", time.kind,
                            core::format(time.forward), core::format(time.backward),
                            core::format(time.recompute), share(time.sum(), step));
    }
    if (!explanation.communications.empty()) {
        text +=
            "\nCommunication by stream and link\n  exposed   share      hidden     waiting    bytes        "
            "stream and purpose\n";
        for (const CommunicationShare& time : explanation.communications)
            text += fmt::format("  {:>8} {:>5.1f} %  {:>9}  {:>9}  {:>10}  {}: {} x {}, {}\n",
                                core::format(time.exposed), share(time.exposed, step),
                                core::format(time.busy - time.exposed), core::format(time.waiting),
                                core::format(time.bytes), time.stream, time.count, time.what, time.links);
    }
    text +=
        "\nWhat it rests on: change of the step (and of peak memory) when a figure is 10 % larger\nProfile\n";
    append_influences(text, explanation.figures, false);
    text += "Cost model\n";
    append_influences(text, explanation.constants, true);
    return text;
}

namespace {

core::Value influences_value(const std::vector<Influence>& influences, bool are_constants) {
    core::Value list = core::Value::array();
    for (const Influence& influence : influences) {
        core::Value entry = core::Value::table();
        entry["name"] = influence.name;
        if (are_constants) entry["value"] = influence.value;
        entry["meaning"] = influence.meaning;
        entry["source"] = influence.source;
        if (!are_constants) entry["date"] = influence.date;
        entry["confidence"] = influence.confidence;
        entry["step_change_pct"] = 100 * influence.step_change;
        entry["peak_memory_change_pct"] = 100 * influence.peak_change;
        list.append(std::move(entry));
    }
    return list;
}

}  // namespace

core::Value to_value(const Explanation& explanation) {
    core::Value value = core::Value::table();
    value["rank"] = explanation.rank;
    value["compute_s"] = explanation.compute_busy.value;
    value["update_s"] = explanation.update.value;
    value["host_s"] = explanation.host.value;
    value["bubble_s"] = explanation.bubble.value;
    core::Value operators = core::Value::array();
    for (const OperatorTime& time : explanation.operators) {
        core::Value entry = core::Value::table();
        entry["kind"] = time.kind;
        entry["operators"] = time.operators;
        entry["forward_s"] = time.forward.value;
        entry["backward_s"] = time.backward.value;
        entry["recompute_s"] = time.recompute.value;
        operators.append(std::move(entry));
    }
    value["operators"] = std::move(operators);
    core::Value communications = core::Value::array();
    for (const CommunicationShare& time : explanation.communications) {
        core::Value entry = core::Value::table();
        entry["stream"] = time.stream;
        entry["what"] = time.what;
        entry["links"] = time.links;
        entry["count"] = time.count;
        entry["bytes"] = time.bytes.value;
        entry["busy_s"] = time.busy.value;
        entry["exposed_s"] = time.exposed.value;
        entry["waiting_s"] = time.waiting.value;
        communications.append(std::move(entry));
    }
    value["communications"] = std::move(communications);
    value["figure_change_pct"] = 10;
    value["figures"] = influences_value(explanation.figures, false);
    value["constants"] = influences_value(explanation.constants, true);
    return value;
}

}  // namespace sim
