// Steps of a recipe that follow one another whatever else a rank does: one instruction can stand for them
// where only times and memory are asked for.
#pragma once

#include <vector>

#include "schedule/pass/recipe.h"
#include "schedule/program/program.h"

namespace schedule {

// The instruction of a step that works, of a stage and a micro-batch, without what it waits for.
Instruction instruction_of(const Step& step, std::int32_t stage, std::int32_t micro_batch);

// Marks the steps that begin such a row and appends what each row does to `parts`, without a micro-batch.
void join_steps(Recipe& recipe, std::int32_t stage, std::vector<Instruction>& parts);

}  // namespace schedule
