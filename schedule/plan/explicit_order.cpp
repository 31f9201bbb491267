#include "schedule/plan/explicit_order.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/diagnostics.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

namespace schedule {

// No name has a comma or a line break; every order has at least a forward and a backward on each rank.
bool is_explicit_order(const std::string& schedule) {
    return schedule.find_first_of(",\n") != std::string::npos;
}

std::string schedule_label(const std::string& schedule) {
    return is_explicit_order(schedule) ? "explicit order" : schedule;
}

std::optional<Schedule> explicit_order(const Plan& plan, core::Diagnostics& diagnostics, int micro_batches,
                                       const core::SourceLocation& location) {
    core::Diagnostics problems;
    const std::optional<Schedule> read = parse_schedule(plan.schedule, "order", problems);
    auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(location, "plan.schedule", message, hint);
        return std::nullopt;
    };
    if (!read)
        return refuse("schedule is no order: " + problems.entries().front().message,
                      problems.entries().front().hint);
    Schedule order = compute_only(*read);
    const int wanted = micro_batches > 0 ? micro_batches : plan.micro_batches;
    if (order.ranks != plan.layout.pipeline || order.stages != plan.stages() || order.micro_batches != wanted)
        return refuse(
            fmt::format("schedule is an order of {} ranks, {} stages and {} micro-batches; the plan has {}, "
                        "{} and {}",
                        order.ranks, order.stages, order.micro_batches, plan.layout.pipeline, plan.stages(),
                        wanted),
            "set schedule = \"auto\" to search the order of this shape, or name a registered schedule");
    if (order.directions > 1 || order.cuts_sequences() || order.is_forward_only)
        return refuse("schedule is an order with several directions, sequence segments or without backward",
                      "a plan's own order trains one copy of the model with whole sequences");
    const std::vector<Violation> violations = verify(order);
    if (!violations.empty())
        return refuse(
            "schedule is an invalid order: " + violations.front().rule + ": " + violations.front().message,
            "`smsim schedule --from FILE.csv` marks the cell");
    return order;
}

}  // namespace schedule
