#include "schedule/plan/sequence_cut.h"

#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/segment.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"

namespace schedule {

int passes_per_micro_batch(const Plan& plan) {
    const PipelineSchedule* chosen = find_pipeline_schedule(plan.schedule);
    if (!chosen || !chosen->cuts_sequences()) return 1;
    return plan.parameters<SegmentParameters>().count();
}

void check_sequence_cut(const Plan& plan, const model::ModelGraph& graph, const ReportError& error) {
    const PipelineSchedule* chosen = find_pipeline_schedule(plan.schedule);
    if (!chosen || !chosen->cuts_sequences()) {
        if (plan.passes_per_micro_batch() > 1)
            error("segments",
                  fmt::format("segments = {}: schedule = {} works on whole sequences",
                              plan.passes_per_micro_batch(), core::in_quotes(schedule_label(plan.schedule))),
                  "set schedule = \"seq1f1b\", or leave segments out");
        return;
    }
    for (const auto& [axis, is_set] : {std::pair("context_parallel", plan.layout.context > 1),
                                       std::pair("offload", plan.offload != Offload::none)})
        if (is_set)
            error(axis,
                  fmt::format("{} works on whole sequences, schedule = {} on segments of them", axis,
                              core::in_quotes(chosen->name)),
                  "leave it out, or choose another schedule");
    const int segments = passes_per_micro_batch(plan);
    const char* key = plan.parameters<SegmentParameters>().segments > 0 ? "segments" : "schedule";
    if (const auto unsupported = model::segments_unsupported(graph, segments)) {
        error(key,
              fmt::format("schedule = {} cannot cut the sequences of {} into {} segments: {}",
                          core::in_quotes(chosen->name), graph.name, segments, unsupported->reason),
              unsupported->is_indivisible ? "choose segments that divide the sequence length"
                                          : "choose a schedule of whole sequences");
        return;
    }
    const std::int64_t rows = graph.tokens_per_sample / segments * plan.micro_batch;
    if (plan.has_sequence_parallelism() && rows % plan.layout.tensor != 0)
        error(key,
              fmt::format("sequence_parallel = true: tensor_parallel = {} does not divide the {} tokens "
                          "of a segment of a micro-batch",
                          plan.layout.tensor, rows),
              "use fewer segments, or a larger micro_batch");
}

}  // namespace schedule
