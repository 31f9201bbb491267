// One constructor per pipeline schedule, each in a file of its own name; registry.cpp lists them.
#pragma once

#include "schedule/pipeline/registry.h"

namespace schedule {

PipelineSchedule forward_only_schedule();
PipelineSchedule simple_schedule();
PipelineSchedule smp_interleaved_schedule();
PipelineSchedule one_forward_one_backward_schedule();
PipelineSchedule interleaved_1f1b_schedule();

}  // namespace schedule
