// One constructor per pipeline schedule, each in a file of its own name; registry.cpp lists them.
#pragma once

#include "schedule/pipeline/registry.h"

namespace schedule {

PipelineSchedule forward_only_schedule();
PipelineSchedule simple_schedule();
PipelineSchedule smp_interleaved_schedule();
PipelineSchedule one_forward_one_backward_schedule();
PipelineSchedule interleaved_1f1b_schedule();
PipelineSchedule grouped_interleaved_schedule();
PipelineSchedule looped_bfs_schedule();
PipelineSchedule interleaved_zero_bubble_schedule();
PipelineSchedule zb_h1_schedule();
PipelineSchedule zb_h2_schedule();
PipelineSchedule zb_1p_schedule();
PipelineSchedule zb_2p_schedule();
PipelineSchedule zero_bubble_v_schedule();
PipelineSchedule zero_bubble_v_auto_schedule();
PipelineSchedule v_min_schedule();
PipelineSchedule v_half_schedule();
PipelineSchedule one_forward_one_backward_v_schedule();
PipelineSchedule seq1f1b_schedule();
PipelineSchedule chimera_schedule();
PipelineSchedule dualpipe_schedule();
PipelineSchedule dualpipe_v_schedule();
PipelineSchedule pipedream_schedule();
PipelineSchedule pipedream_2bw_schedule();

}  // namespace schedule
