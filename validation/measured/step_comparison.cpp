#include "validation/measured/step_comparison.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/core.h>

#include "core/errors.h"

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

// Of one micro-batch's forward pass.
core::Seconds forward_of_micro_batch(const sim::OperatorTime& time, int micro_batches) {
    return time.forward / micro_batches;
}

std::string_view name_of(MeasuredWork work) {
    switch (work) {
        case MeasuredWork::kernels: return "device";
        case MeasuredWork::operators: return "processor";
        case MeasuredWork::modules: return "modules";
    }
    core::require(false, "every work has a name");
    return {};
}

std::string heading(const MeasuredStep& measured) {
    if (measured.part == MeasuredPart::forward) return "forward pass of one micro-batch, module by module";
    return fmt::format(
        "{} step{} traced, {}", measured.steps, measured.steps == 1 ? "" : "s",
        measured.work == MeasuredWork::kernels ? "kernels of one device" : "operators of a processor");
}

// The sizes that a kind of communication had, the longest first.
std::string messages_of(const StepComparison::Row& row) {
    if (row.messages.empty()) return {};
    std::vector<std::pair<core::Bytes, MeasuredStep::Message>> messages(row.messages.begin(),
                                                                        row.messages.end());
    std::stable_sort(messages.begin(), messages.end(),
                     [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
    constexpr std::size_t shown = 4;
    std::string text = fmt::format("  messages of {}:", name_of(row.kind));
    for (std::size_t i = 0; i < std::min(shown, messages.size()); ++i)
        text += fmt::format("{} {} x {} in {}", i > 0 ? "," : "", messages[i].second.count,
                            core::format(messages[i].first), core::format(messages[i].second.time));
    if (messages.size() > shown) text += fmt::format(" and {} more", messages.size() - shown);
    return text + fmt::format("; predicted {} in all\n", core::format(row.predicted_bytes));
}

core::Value value_of(const std::map<core::Bytes, MeasuredStep::Message>& messages) {
    core::Value rows = core::Value::array();
    for (const auto& [size, message] : messages) {
        core::Value one = core::Value::table();
        one["bytes"] = size.value;
        one["count"] = message.count;
        one["measured_s"] = message.time.value;
        rows.append(std::move(one));
    }
    return rows;
}

std::string_view remarks(const MeasuredStep& measured) {
    if (measured.part == MeasuredPart::forward)
        return "what a module does outside of its modules counts for its class; measured with the host and "
               "with\n"
               "collectives inside modules, and synchronized at each module; predicted of operators alone\n";
    return "kernels that run beside each other are each counted in full; a collective's kernel also waits "
           "for its partners\n";
}

}  // namespace

std::map<StepKind, core::Seconds> predicted_shares(const PredictedStep& predicted, MeasuredPart part) {
    const sim::Explanation& explanation = predicted.explanation;
    const bool is_forward = part == MeasuredPart::forward;
    std::map<StepKind, core::Seconds> shares;
    for (const sim::OperatorTime& time : explanation.operators)
        shares[kind_of_operator_named(time.kind)] +=
            is_forward ? forward_of_micro_batch(time, predicted.micro_batches) : time.sum();
    if (is_forward) return shares;
    for (const sim::CommunicationShare& share : explanation.communications)
        shares[kind_of_communication(share.what)] += share.busy;
    if (explanation.update.value > 0) shares[StepKind::optimizer] += explanation.update;
    return shares;
}

StepComparison compare_step(const PredictedStep& predicted, const MeasuredStep& measured) {
    StepComparison result;
    const sim::Explanation& explanation = predicted.explanation;
    const std::map<StepKind, core::Seconds> shares = predicted_shares(predicted, measured.part);
    result.measured = measured.step;
    if (measured.part == MeasuredPart::step) {
        result.predicted = explanation.step;
        constexpr core::Seconds rounding(1e-9);  // of sums that leave nothing
        result.predicted_idle = explanation.bubble + explanation.host;
        if (result.predicted_idle < rounding) result.predicted_idle = core::Seconds(0);
        result.measured_idle = std::max(core::Seconds(0), measured.step - measured.busy);
    } else {
        for (const auto& [kind, time] : shares) result.predicted += time;
        if (measured.whole_step) result.predicted_step = explanation.step;
    }
    for (const StepKind kind : step_kinds) {
        const auto before = shares.find(kind);
        const auto found = measured.shares.find(kind);
        if (before == shares.end() && found == measured.shares.end()) continue;
        StepComparison::Row row;
        row.kind = kind;
        if (before != shares.end()) row.predicted = before->second;
        if (found != measured.shares.end()) {
            row.measured = found->second.time;
            row.count = found->second.count;
            row.longest = found->second.longest;
            row.messages = found->second.messages;
        }
        if (measured.part == MeasuredPart::step)
            for (const sim::CommunicationShare& share : explanation.communications)
                if (kind_of_communication(share.what) == kind) row.predicted_bytes += share.bytes;
        result.rows.push_back(std::move(row));
    }
    std::stable_sort(result.rows.begin(), result.rows.end(),
                     [](const StepComparison::Row& a, const StepComparison::Row& b) {
                         return std::abs(a.difference().value) > std::abs(b.difference().value);
                     });
    const auto compare_size = [&](const char* name, const std::optional<double>& ours,
                                  const std::optional<double>& theirs) {
        if (ours && theirs) result.sizes.push_back({name, *ours, *theirs});
    };
    compare_size("parameters", predicted.parameters, measured.parameters);
    compare_size("forward FLOPs", predicted.forward_flops, measured.forward_flops);
    return result;
}

std::string text_of(const StepComparison& comparison, const MeasuredStep& measured) {
    const bool is_step = measured.part == MeasuredPart::step;
    const auto line = [](std::string_view what, core::Seconds predicted, core::Seconds taken,
                         const std::string& rest) {
        const double difference = (taken - predicted).value;
        return fmt::format("  {:<18} {:>9} {:>9} {:>1}{:>9}{}\n", what, core::format(predicted),
                           core::format(taken), difference < 0 ? "-" : "+",
                           core::format(core::Seconds(std::abs(difference))),
                           rest.empty() ? "" : "  " + rest);
    };
    const auto ratio = [](double predicted, double taken) {
        if (!(predicted > 0)) return std::string();
        return fmt::format("measured / predicted = {:.3f}", taken / predicted);
    };
    std::string text = fmt::format("{}\n\n  {:<18} {:>9} {:>9} {:>10}\n", heading(measured), "", "predicted",
                                   "measured", "more");
    if (comparison.predicted_step)
        text += line("step", *comparison.predicted_step, *measured.whole_step,
                     ratio(comparison.predicted_step->value, measured.whole_step->value));
    text += line(is_step ? "step" : "forward", comparison.predicted, comparison.measured,
                 ratio(comparison.predicted.value, comparison.measured.value));
    for (const StepComparison::Row& row : comparison.rows)
        text += line(name_of(row.kind), row.predicted, row.measured,
                     row.count > 0 ? fmt::format("{} a {}, most in {:.60}", row.count,
                                                 is_step ? "step" : "pass", row.longest)
                                   : "");
    if (is_step)
        text += line("idle", comparison.predicted_idle, comparison.measured_idle,
                     "bubbles, and waiting for the host");
    for (const StepComparison::Row& row : comparison.rows) text += messages_of(row);
    for (const StepComparison::Size& size : comparison.sizes)
        text += fmt::format("  {:<18} {:>9.3g} {:>9.3g} {:>10}  {}\n", size.name, size.predicted,
                            size.measured, "", ratio(size.predicted, size.measured));
    text += '\n';
    if (measured.is_replayed)
        text +=
            "the trace has no clock times: its step is its durations in the order of their dependencies\n";
    text += remarks(measured);
    return text;
}

core::Value to_value(const StepComparison& comparison, const MeasuredStep& measured) {
    core::Value value = core::Value::table();
    value["steps"] = measured.steps;
    value["traced"] = name_of(measured.work);
    if (measured.is_replayed) value["replayed"] = true;
    if (measured.part == MeasuredPart::step) {
        value["predicted_step_s"] = comparison.predicted.value;
        value["measured_step_s"] = comparison.measured.value;
        value["predicted_idle_s"] = comparison.predicted_idle.value;
        value["measured_idle_s"] = comparison.measured_idle.value;
    } else {
        value["predicted_forward_s"] = comparison.predicted.value;
        value["measured_forward_s"] = comparison.measured.value;
        if (comparison.predicted_step) {
            value["predicted_step_s"] = comparison.predicted_step->value;
            value["measured_step_s"] = measured.whole_step->value;
        }
    }
    core::Value rows = core::Value::array();
    for (const StepComparison::Row& row : comparison.rows) {
        core::Value one = core::Value::table();
        one["kind"] = name_of(row.kind);
        one["predicted_s"] = row.predicted.value;
        one["measured_s"] = row.measured.value;
        one["count"] = row.count;
        if (!row.longest.empty()) one["longest"] = row.longest;
        if (row.predicted_bytes.value > 0) one["predicted_bytes"] = row.predicted_bytes.value;
        if (!row.messages.empty()) one["messages"] = value_of(row.messages);
        rows.append(std::move(one));
    }
    value["kinds"] = std::move(rows);
    core::Value sizes = core::Value::array();
    for (const StepComparison::Size& size : comparison.sizes) {
        core::Value one = core::Value::table();
        one["name"] = size.name;
        one["predicted"] = size.predicted;
        one["measured"] = size.measured;
        sizes.append(std::move(one));
    }
    if (!comparison.sizes.empty()) value["sizes"] = std::move(sizes);
    return value;
}

}  // namespace validation
