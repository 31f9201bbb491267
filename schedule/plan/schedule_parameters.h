// The keys of a plan that belong to its schedule (schedule/pipeline/parameters.h): how files name them, and
// which schedules take them.
#pragma once

#include "core/reader.h"
#include "core/value.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Reads the keys of every kind into the plan, whose schedule is read already. A key that asks something of a
// schedule that does not take it is an error at the key.
void read_schedule_parameters(core::TableReader& reader, Plan& plan);
// Those that the plan's schedule takes and that are not its defaults.
void write_schedule_parameters(const Plan& plan, core::Value& table);

}  // namespace schedule
