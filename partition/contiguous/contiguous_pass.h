// One pass of the contiguous search: the best placement whose loads all lie below a threshold, or the proof
// that there is none.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/contiguous/search_graph.h"
#include "partition/deadline.h"
#include "partition/placement.h"

namespace partition {

struct PassResult {
    enum class Outcome { found, none, out_of_time };
    Outcome outcome = Outcome::none;
    std::vector<PlacedStage> stages;  // of the best placement met, also when time ran out
    double value = 0;
    std::int64_t expanded = 0;
};

// Stages are numbered from the first downset on: stage s keeps the activations of min(micro_batches, s + 1)
// micro-batches. A placement of value at most `good_enough` ends the pass. The answer depends neither on the
// number of threads nor on their timing.
PassResult contiguous_pass(const PlacementProblem& problem, const SearchGraph& graph, double threshold,
                           double good_enough, int threads, const Deadline& deadline);

}  // namespace partition
