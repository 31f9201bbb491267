// Where and why a plan runs out of memory, in words and as a value.
#pragma once

#include <string>

#include "core/value.h"
#include "sim/evaluate.h"

namespace sim {

// A few lines: rank, moment, instruction and its operators, what it asks for, how much is short, what is held
// then by kind.
std::string text_of(const OutOfMemory& failure);
// {rank, pipeline_rank, stream, instruction, index, stage, micro_batch, operators, time_s, asked_gib,
// needed_gib, available_gib, short_gib, held_gib {kind}}
core::Value to_value(const OutOfMemory& failure);

}  // namespace sim
