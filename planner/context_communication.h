// How ranks that divide samples attend to each other's tokens, as far as it is worth a look.
#pragma once

#include <vector>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace planner {

// Of a plan: keys gathered; heads exchanged where they divide and that moves at most twice as much, or where
// others are asked for; a ring where they are.
std::vector<schedule::ContextCommunication> communication_choices(const model::ModelGraph& graph,
                                                                  schedule::Plan plan, bool is_asked_for);

}  // namespace planner
