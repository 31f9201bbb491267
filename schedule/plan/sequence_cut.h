// Into how many segments a plan cuts the sequences of a micro-batch (Seq1F1B): its key of the plan file, what
// the plan's schedule makes of it, and what is wrong with it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/reader.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

void read_sequence_cut(core::TableReader& reader, Plan& plan);
void write_sequence_cut(const Plan& plan, core::Value& table);

// How often a micro-batch of the plan passes each stage: once, or once a segment where its schedule cuts
// sequences; the schedule's own number where the plan gives none.
int passes_per_micro_batch(const Plan& plan);

// Reports at the key that can mend it what keeps the plan's schedule from cutting the sequences of this
// model: it needs a model that works token by token behind causal attention, and segments of equal length.
using ReportError = std::function<void(std::string_view key, std::string message, std::string hint)>;
void check_sequence_cut(const Plan& plan, const model::ModelGraph& graph, const ReportError& error);

}  // namespace schedule
