// Why one scenario is faster than another, and what each optimisation of a plan is worth.
#pragma once

#include <string>
#include <vector>

#include "api/reply.h"
#include "api/simulate.h"

namespace api {

// step_time_s[], parts[] of the first two, comparisons[] of the first and each other. `told`: errors that the
// caller found already; they come first.
Reply compare(const std::vector<ScenarioSource>& scenarios, core::Diagnostics told = {});

// step_time_s, without[], added[]. `only`: names of optimisations, these alone and added in this order
// (empty: all); an unknown name is an error.
Reply ablate(const ScenarioSource& scenario, const std::vector<std::string>& only = {},
             core::Diagnostics told = {});

}  // namespace api
