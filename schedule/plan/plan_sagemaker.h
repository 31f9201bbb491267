// SageMaker SMP v1's `modelparallel` block as a plan: [plan.sagemaker] with `processes_per_host` and the
// estimator's `parameters` table, word for word.
#pragma once

#include "core/reader.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Sets the fields of `plan` that the block decides (layout, schedule, micro-batches, sharding, precision).
// `plan_reader` is of [plan], to diagnose keys that say the same thing twice; `instances` are the cluster's
// nodes. Parameters without effect here are warnings; those that cannot be honoured are errors.
void read_sagemaker(const core::Value& table, core::TableReader& plan_reader, int instances, Plan& plan);

}  // namespace schedule
