// Rules of verify(Schedule) that ask rules 1 to 4 to hold already.
#pragma once

#include <vector>

#include "schedule/schedule.h"
#include "schedule/verify.h"

namespace schedule {

void check_transfers(const Schedule& schedule, const ScheduleLimits& limits,
                     std::vector<Violation>& violations);  // 5 and 6
void check_memory(const Schedule& schedule, const ScheduleLimits& limits,
                  std::vector<Violation>& violations);  // 7
void check_sharded_parameters(const Schedule& schedule, const ScheduleLimits& limits,
                              std::vector<Violation>& violations);                        // 8
void check_gradient_order(const Schedule& schedule, std::vector<Violation>& violations);  // 9

}  // namespace schedule
