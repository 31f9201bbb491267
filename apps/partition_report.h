// A placement with all that is asked for beside it: what crosses each boundary, the saved decision, the picture, the bar while it is searched.
#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "apps/partition_answer.h"
#include "core/diagnostics.h"
#include "planner/placement.h"
#include "schedule/partition_file.h"

namespace apps {

// Appends cuts[] and their sums to an answer: bytes a micro-batch (times where the format says times only), inside an instance and between instances, stage s on
// device s.
void add_cut_report(const planner::PlacementProblem& problem, const planner::PlacementResult& result, int devices_per_instance, PartitionAnswer& answer);

schedule::PartitionFile decision_of(const planner::PlacementProblem& problem, const planner::PlacementResult& result);
// Stages of a decision; names that are unknown, missing or doubly placed are diagnosed, as is a graph that is not the one decided for.
std::optional<planner::PlacementResult> apply_decision(const schedule::PartitionFile& file, const std::string& path, const std::string& graph_hash,
                                                       std::optional<int> default_partition, const planner::PlacementProblem& problem, core::Diagnostics& diagnostics);

void write_pictures(const planner::PlacementProblem& problem, const planner::PlacementResult& result, const std::string& title, const std::optional<std::string>& dot,
                    const std::optional<std::string>& svg);

// A bar with bound and gap on stderr when that is a terminal; nothing otherwise.
std::function<void(const planner::PlacementProgress&)> progress_bar(bool as_json);
void clear_progress_bar(bool as_json);

}  // namespace apps
