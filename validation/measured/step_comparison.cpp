#include "validation/measured/step_comparison.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "core/text.h"

namespace validation {

namespace {

StepKind kind_of_operator_named(const std::string& kind) {
    struct NamedKind {
        const char* name;
        StepKind kind;
    };
    constexpr std::array names = {NamedKind{"linear", StepKind::matrix_product},
                                  NamedKind{"experts", StepKind::matrix_product},
                                  NamedKind{"matrix_product", StepKind::matrix_product},
                                  NamedKind{"conv2d", StepKind::convolution},
                                  NamedKind{"convolution", StepKind::convolution},
                                  NamedKind{"attention", StepKind::attention_and_loss},
                                  NamedKind{"softmax", StepKind::attention_and_loss},
                                  NamedKind{"cross_entropy", StepKind::attention_and_loss},
                                  NamedKind{"loss_statistics", StepKind::attention_and_loss},
                                  NamedKind{"layer_norm", StepKind::norm},
                                  NamedKind{"rms_norm", StepKind::norm},
                                  NamedKind{"batch_norm", StepKind::norm},
                                  NamedKind{"normalization", StepKind::norm}};
    for (const NamedKind& one : names)
        if (kind == one.name) return one.kind;
    return StepKind::elementwise;
}

// "all_gather parameter over shard", "send activation"
StepKind kind_of_communication(const std::string& what) {
    const std::string word = what.substr(0, what.find(' '));
    for (const StepKind kind :
         {StepKind::all_reduce, StepKind::all_gather, StepKind::reduce_scatter, StepKind::all_to_all})
        if (word == name_of(kind)) return kind;
    return word == "send" || word == "receive" ? StepKind::send_receive : StepKind::other_communication;
}

}  // namespace

std::map<StepKind, core::Seconds> predicted_shares(const sim::Explanation& explanation) {
    std::map<StepKind, core::Seconds> shares;
    for (const sim::OperatorTime& time : explanation.operators)
        shares[kind_of_operator_named(time.kind)] += time.sum();
    for (const sim::CommunicationShare& share : explanation.communications)
        shares[kind_of_communication(share.what)] += share.busy;
    if (explanation.update.value > 0) shares[StepKind::optimizer] += explanation.update;
    return shares;
}

StepComparison compare_step(const sim::Explanation& explanation, const MeasuredStep& measured) {
    StepComparison result;
    result.predicted = explanation.step;
    result.measured = measured.step;
    constexpr core::Seconds rounding(1e-9);  // of sums that leave nothing
    result.predicted_idle = explanation.bubble + explanation.host;
    if (result.predicted_idle < rounding) result.predicted_idle = core::Seconds(0);
    result.measured_idle = std::max(core::Seconds(0), measured.step - measured.busy);
    const std::map<StepKind, core::Seconds> predicted = predicted_shares(explanation);
    for (const StepKind kind : step_kinds) {
        const auto before = predicted.find(kind);
        const auto found = measured.shares.find(kind);
        if (before == predicted.end() && found == measured.shares.end()) continue;
        StepComparison::Row row;
        row.kind = kind;
        if (before != predicted.end()) row.predicted = before->second;
        if (found != measured.shares.end()) {
            row.measured = found->second.time;
            row.count = found->second.count;
            row.longest = found->second.longest;
        }
        result.rows.push_back(std::move(row));
    }
    std::stable_sort(result.rows.begin(), result.rows.end(),
                     [](const StepComparison::Row& a, const StepComparison::Row& b) {
                         return std::abs(a.difference().value) > std::abs(b.difference().value);
                     });
    return result;
}

std::string text_of(const StepComparison& comparison, const MeasuredStep& measured) {
    const auto line = [](std::string_view what, core::Seconds predicted, core::Seconds taken,
                         const std::string& rest) {
        const double difference = (taken - predicted).value;
        return fmt::format("  {:<18} {:>9} {:>9} {:>1}{:>9}{}\n", what, core::format(predicted),
                           core::format(taken), difference < 0 ? "-" : "+",
                           core::format(core::Seconds(std::abs(difference))),
                           rest.empty() ? "" : "  " + rest);
    };
    std::string text =
        fmt::format("{} step{} traced, {}\n\n  {:<18} {:>9} {:>9} {:>10}\n", measured.steps,
                    measured.steps == 1 ? "" : "s",
                    measured.is_of_device ? "kernels of one device" : "operators of a processor", "",
                    "predicted", "measured", "more");
    text += line(
        "step", comparison.predicted, comparison.measured,
        fmt::format("measured / predicted = {:.3f}", comparison.measured.value / comparison.predicted.value));
    for (const StepComparison::Row& row : comparison.rows)
        text += line(name_of(row.kind), row.predicted, row.measured,
                     row.count > 0 ? fmt::format("{} a step, most in {:.60}", row.count, row.longest) : "");
    text += line("idle", comparison.predicted_idle, comparison.measured_idle,
                 "bubbles, and waiting for the host");
    text +=
        "\nkernels that run beside each other are each counted in full; a collective's kernel also waits for "
        "its "
        "partners\n";
    return text;
}

core::Value to_value(const StepComparison& comparison, const MeasuredStep& measured) {
    core::Value value = core::Value::table();
    value["steps"] = measured.steps;
    value["traced"] = measured.is_of_device ? "device" : "processor";
    value["predicted_step_s"] = comparison.predicted.value;
    value["measured_step_s"] = comparison.measured.value;
    value["predicted_idle_s"] = comparison.predicted_idle.value;
    value["measured_idle_s"] = comparison.measured_idle.value;
    core::Value rows = core::Value::array();
    for (const StepComparison::Row& row : comparison.rows) {
        core::Value one = core::Value::table();
        one["kind"] = name_of(row.kind);
        one["predicted_s"] = row.predicted.value;
        one["measured_s"] = row.measured.value;
        one["count"] = row.count;
        if (!row.longest.empty()) one["longest"] = row.longest;
        rows.append(std::move(one));
    }
    value["kinds"] = std::move(rows);
    return value;
}

}  // namespace validation
