// What a plan puts on hosts and disks: activations, the optimizer, parameters.
#pragma once

#include "schedule/plan/plan.h"
#include "schedule/plan/sequence_cut.h"

namespace schedule {

// Reports what is wrong with it at the key that can mend it.
void check_offload(const Plan& plan, const ReportError& error);

}  // namespace schedule
