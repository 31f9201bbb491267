#include "sim/report/memory_report.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/diagnostics.h"

namespace sim {

namespace {

// The contract's keys "stage" and "micro_batch" hold a number: this one where there is none.
constexpr int no_number = -1;

// The largest first.
std::vector<std::size_t> kinds_by_size(const OutOfMemory& failure) {
    std::vector<std::size_t> kinds;
    for (std::size_t k = 0; k < failure.held.size(); ++k)
        if (failure.held[k].value > 0) kinds.push_back(k);
    std::stable_sort(kinds.begin(), kinds.end(),
                     [&](std::size_t a, std::size_t b) { return failure.held[a] > failure.held[b]; });
    return kinds;
}

}  // namespace

std::string text_of(const OutOfMemory& failure) {
    std::string text;
    if (failure.instruction) {
        text += fmt::format("Out of memory on rank {} (pipeline {}), {} into the step, stream {}:\n",
                            failure.rank, failure.pipeline, core::format(failure.time), failure.stream);
        text += fmt::format("  {}\n", failure.what);
        if (failure.micro_batch)
            text += fmt::format("  micro-batch {} of stage {}", *failure.micro_batch,
                                failure.stage.value_or(no_number));
        if (failure.operators)
            text += fmt::format("{}at {}", failure.micro_batch ? ", " : "  ", *failure.operators);
        if (failure.micro_batch || failure.operators) text += "\n";
        text +=
            fmt::format("  asks for {}: {} needed then, {} available, {} short\n",
                        core::format(failure.asked), core::format(failure.needed),
                        core::format(failure.available), core::format(failure.needed - failure.available));
    } else {
        text += fmt::format("Out of memory on rank {} (pipeline {}) before the step begins: {}\n",
                            failure.rank, failure.pipeline, failure.what);
        text +=
            fmt::format("  {} needed, {} available, {} short\n", core::format(failure.needed),
                        core::format(failure.available), core::format(failure.needed - failure.available));
    }
    text += "  held then:";
    const char* separator = " ";
    for (const std::size_t kind : kinds_by_size(failure)) {
        text += fmt::format("{}{} {}", separator, schedule::name_of(static_cast<schedule::MemoryKind>(kind)),
                            core::format(failure.held[kind]));
        separator = ", ";
    }
    return text + "\n";
}

core::Value to_value(const OutOfMemory& failure) {
    core::Value value = core::Value::table();
    value["rank"] = failure.rank;
    value["pipeline_rank"] = failure.pipeline;
    value["stream"] = failure.stream;
    value["instruction"] = failure.what;
    value["index"] = failure.instruction ? core::Value(std::int64_t{*failure.instruction}) : core::Value();
    value["stage"] = failure.stage.value_or(no_number);
    value["micro_batch"] = failure.micro_batch.value_or(no_number);
    value["operators"] = failure.operators.value_or("");
    value["time_s"] = failure.time.value;
    value["asked_gib"] = core::to_gibibytes(failure.asked);
    value["needed_gib"] = core::to_gibibytes(failure.needed);
    value["available_gib"] = core::to_gibibytes(failure.available);
    value["short_gib"] = core::to_gibibytes(failure.needed - failure.available);
    core::Value held = core::Value::table();
    for (std::size_t k = 0; k < failure.held.size(); ++k)
        held[std::string(schedule::name_of(static_cast<schedule::MemoryKind>(k)))] =
            core::to_gibibytes(failure.held[k]);
    value["held_gib"] = std::move(held);
    return value;
}

}  // namespace sim
