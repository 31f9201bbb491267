// Hyperparameters by the names of AWS's example scripts (arguments.py of aws/amazon-sagemaker-examples at
// 2d519b52c, 2025-02-13), which estimators hand to scripts of users' own too.
#pragma once

#include "interop/exchange.h"
#include "interop/import_place.h"

namespace interop {

// What they say of the training: steps, seed, AdamW's values, tokens a sample, gradient accumulation without
// a pipeline, fp8. What is absent, or no number, leaves the plan as it is; the options go first.
void read_example_hyperparameters(const SageMakerBlock& block, const ImportOptions& options,
                                  schedule::PlanFile& file);

}  // namespace interop
