#include "schedule/pipeline/registry.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/index/integers.h"
#include "schedule/pipeline/generators.h"

namespace schedule {

RelativeStageCost PipelineShape::cost(int stage) const {
    if (!stage_costs.empty()) return stage_costs[stage];
    return {.forward = forward, .backward_input = backward_input, .backward_weight = backward_weight};
}

const std::vector<PipelineSchedule>& pipeline_schedules() {
    static const std::vector<PipelineSchedule> schedules = {
        forward_only_schedule(),
        simple_schedule(),
        smp_interleaved_schedule(),
        one_forward_one_backward_schedule(),
        interleaved_1f1b_schedule(),
        grouped_interleaved_schedule(),
        looped_bfs_schedule(),
        interleaved_zero_bubble_schedule(),
        zb_h1_schedule(),
        zb_h2_schedule(),
        zb_1p_schedule(),
        zb_2p_schedule(),
        zero_bubble_v_schedule(),
        zero_bubble_v_auto_schedule(),
        v_half_schedule(),
        v_min_schedule(),
        one_forward_one_backward_v_schedule(),
        seq1f1b_schedule(),
        chimera_schedule(),
        dualpipe_schedule(),
        dualpipe_v_schedule(),
        pipedream_schedule(),
        pipedream_2bw_schedule(),
    };
    return schedules;
}

const PipelineSchedule* find_pipeline_schedule(const std::string& name) {
    for (const PipelineSchedule& schedule : pipeline_schedules())
        if (schedule.name == name ||
            std::find(schedule.aliases.begin(), schedule.aliases.end(), name) != schedule.aliases.end())
            return &schedule;
    return nullptr;
}

std::optional<core::Unsupported> unsupported(const PipelineSchedule& schedule, const PipelineShape& shape) {
    if (shape.ranks < 1 || shape.chunks < 1 || shape.micro_batches < 1)
        return core::Unsupported{fmt::format("{} ranks, {} chunks and {} micro-batches must all be positive",
                                             shape.ranks, shape.chunks, shape.micro_batches)};
    if (shape.chunks < schedule.least_chunks || shape.chunks > schedule.greatest_chunks)
        return core::Unsupported{schedule.least_chunks == schedule.greatest_chunks
                                     ? fmt::format("{} has {} chunk{} per rank, not {}", schedule.name,
                                                   schedule.least_chunks,
                                                   schedule.least_chunks == 1 ? "" : "s", shape.chunks)
                                     : fmt::format("{} needs {} or more chunks per rank, not {}",
                                                   schedule.name, schedule.least_chunks, shape.chunks)};
    if (!shape.stage_costs.empty() && core::count_of(shape.stage_costs) != shape.stages())
        return core::Unsupported{fmt::format("times of {} stages for {} stages ({} ranks with {} chunks)",
                                             shape.stage_costs.size(), shape.stages(), shape.ranks,
                                             shape.chunks)};
    return schedule.unsupported ? schedule.unsupported(shape) : std::nullopt;
}

}  // namespace schedule
