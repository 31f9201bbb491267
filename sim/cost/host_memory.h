// Memory of the hosts that a Program's offloaded activations occupy while they wait for their backward, and
// the state of an optimizer there.
#pragma once

#include "cluster/topology.h"
#include "core/units.h"
#include "schedule/program/program.h"

namespace sim {

// Greatest amount that one rank has offloaded at a time. Copies follow one another on their stream, so the
// order of the list determines it: host memory is allocated when a copy out begins, and freed when the copy
// back has ended.
core::Bytes most_offloaded(const schedule::RankProgram& list);

// In words, what a plan has there: "activations and optimizer state".
const char* what_is_offloaded(const schedule::Plan& plan);

// What hosts keep of a parameter that they update, as the plan's framework does it: FSDP's fp32 values have
// no copy in the type that passes read.
core::Bytes state_bytes_on_host(const schedule::Plan& plan);

// What one rank keeps there to update its parameters.
core::Bytes optimizer_on_host(const schedule::Plan& plan, const schedule::RankProgram& list);

// Of the ranks of the fullest node together, each at its own peak. Zero where a Program offloads nothing, or
// to disk.
core::Bytes offloaded_to_a_host(const schedule::Program& program, const cluster::Cluster& cluster);

}  // namespace sim
