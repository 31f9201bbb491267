// A bound from memory and time together: every micro-batch holds memory on a rank until its gradient has come
// back, and the sum of these holdings has to stay below the limit.
#pragma once

#include "planner/order/order_evaluator.h"

namespace planner {

// No order keeps the rank occupied for less, from its first start to its last end. Zero without a memory
// limit.
//
// A micro-batch holds the memory of a forward from its start until the chain through the later stages and
// back has let the stage's backward release it. The sum of memory times time over all micro-batches is at
// most the limit times the rank's span, less what the limit cannot be filled with while the first forwards
// run and the last gradients drain. (The V-shaped schedules' argument about lifespans, arXiv 2405.15362,
// section 3, for any stages and times.)
double residence_bound(const OrderProblem& problem, int rank);

}  // namespace planner
