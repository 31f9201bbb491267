// A placement with what is asked for beside it: what crosses each boundary, the picture.
#pragma once

#include <optional>

#include "api/partition/partition_answer.h"
#include "api/partition/partition_options.h"
#include "api/partition/partition_picture.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/placement.h"
#include "partition/replicated/replicated_placement.h"

namespace api {

// Appends cuts[] and their sums to an answer: bytes a micro-batch (times where the format says times only),
// inside an instance and between instances, stage s on device s; without a number of devices all are in one.
void add_cut_report(const partition::PlacementProblem& problem, const partition::PlacementResult& result,
                    std::optional<int> devices_per_instance, PartitionAnswer& answer);

// The graph with the stage of every node; shades tell how heavy a node is.
Picture picture_of(const partition::PlacementProblem& problem, const partition::PlacementResult& result);
Picture picture_of(const partition::ReplicatedProblem& problem, const partition::ReplicatedResult& result);
Picture picture_of(const partition::HierarchicalProblem& problem,
                   const partition::HierarchicalResult& result);
// Adds the files in which the request wants it, as DOT and SVG; they are written after the answer.
void add_picture(Picture picture, const PartitionRequest& request, std::vector<OutputFile>& files);

}  // namespace api
