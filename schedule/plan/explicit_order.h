// A plan's `schedule` is a registered name, "auto", or an order itself in the text form: one row per pipeline
// rank, cells such as 2F0.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "schedule/plan/plan.h"
#include "schedule/schedule.h"

namespace schedule {

bool is_explicit_order(const std::string& schedule);
// "auto" asks for a search (planner/order/plan_order.h): the code that loads a plan replaces it by the order
// found.
inline bool is_searched_order(const std::string& schedule) { return schedule == "auto"; }

// The schedule as tables call it: its name, or "explicit order".
std::string schedule_label(const std::string& schedule);

// The order a plan holds: synchronous, of whole sequences, one copy of the model, of the plan's ranks, stages
// and micro-batches, and verified. Everything wrong with it is a diagnostic at `location`. Of another number
// of micro-batches than the plan's there is no order: nothing then, with a diagnostic.
std::optional<Schedule> explicit_order(const Plan& plan, core::Diagnostics& diagnostics,
                                       int micro_batches = 0, const core::SourceLocation& location = {});

}  // namespace schedule
