// Into how many segments a plan cuts the sequences of a micro-batch (Seq1F1B): what the plan's schedule makes
// of its parameters, and what is wrong with them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

// How often a micro-batch of the plan passes each stage: once, or once a segment where its schedule cuts
// sequences; the schedule's own number where the plan gives none.
int passes_per_micro_batch(const Plan& plan);

// Reports at the key that can mend it what keeps the plan's schedule from cutting the sequences of this
// model: it needs a model that works token by token behind causal attention, and segments of equal length.
using ReportError = std::function<void(std::string_view key, std::string message, std::string hint)>;
void check_sequence_cut(const Plan& plan, const model::ModelGraph& graph, const ReportError& error);

}  // namespace schedule
