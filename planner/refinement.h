// Plans beside those of the space: its axes have few values where more would cost more than they bring.
#pragma once

#include <vector>

#include "schedule/plan/plan.h"

namespace planner {

// The plan with one thing changed to what no plan of the space has:
//   shard_degree: every other divisor of the replicas (that divides the experts' ranks or is divided by
//   them); group_size, of schedules that take micro-batches in groups: the next smaller and larger one of
//   half the ranks and their powers of two, up to all micro-batches; gradient_bucket, of gradients that are
//   reduced in buckets: the next two smaller and larger ones of 1, 2, 5, 10, 25, 50, ... 1,000 MiB;
//   recompute_layers, of a plan that has them: one less and one more; of a plan that runs whole layers again
//   or offloads those of each stage on its own, of one that has these as many of all; recompute_modules:
//   without one of them; where none is left, recompute none, which with the plan's cuts may fit; sharding, of
//   a plan that is in no space, as it was refined, runs some layers again or passes keys on in a ring: every
//   other one.
std::vector<schedule::Plan> refinements(const schedule::Plan& plan, bool was_refined);
// Are its gradients reduced in buckets?
bool takes_buckets(const schedule::Plan& plan);
// Of a plan that is in no space, with every other schedule.
std::vector<schedule::Plan> schedules_instead(const schedule::Plan& plan, bool was_refined);

// The plan with what another was refined to, where it takes that and has it not: with all of it, and with
// each alone of `shard_degree`, `group_size` and `gradient_bucket`.
std::vector<schedule::Plan> refined_alike(const schedule::Plan& plan, const schedule::Plan& refined);

}  // namespace planner
