// Memory of the hosts: what a Program's offloaded activations take there while they wait for their backward.
#pragma once

#include "cluster/topology.h"
#include "core/units.h"
#include "schedule/program/program.h"

namespace sim {

// Most that one rank has away at a time. Copies follow one another on their stream, so the order of the list
// says it: room is taken as a copy out begins, and given back as the copy back has ended.
core::Bytes most_offloaded(const schedule::RankProgram& list);

// Of the ranks of the fullest node together, each at its own peak. Zero where a Program offloads to disk or
// not at all.
core::Bytes offloaded_to_a_host(const schedule::Program& program, const cluster::Cluster& cluster);

}  // namespace sim
