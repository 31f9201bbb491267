// PipeDream (Harlap et al., arXiv 1806.03377) and PipeDream-2BW (Narayanan et al., arXiv 2006.09503): 1F1B
// without flush. PipeDream updates a stage after every backward and keeps the weights that each micro-batch
// in flight began with; 2BW updates once per group of g >= p micro-batches and keeps two versions. The list
// is a stream of m micro-batches from a cold start; the last ones drain it.
#include <fmt/core.h>

#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

Schedule stream(const char* name, const PipelineShape& shape, int update_period, int weight_versions) {
    Schedule schedule = empty_schedule(name, shape);
    schedule.weight_versions = weight_versions;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        const int warm_up = std::min(shape.ranks - 1 - rank, shape.micro_batches);
        for (int k = 0; k < warm_up; ++k) list.push_back(forward_of(rank, k));
        for (int k = 0; k < shape.micro_batches; ++k) {
            if (k + warm_up < shape.micro_batches) list.push_back(forward_of(rank, k + warm_up));
            list.push_back(backward_of(rank, k));
            if ((k + 1) % update_period == 0 || k + 1 == shape.micro_batches)
                list.push_back({ActionKind::optimizer_step, rank, k / update_period});
        }
    }
    return schedule;
}

Schedule generate_pipedream(const PipelineShape& shape) { return stream("pipedream", shape, 1, shape.ranks); }
Schedule generate_2bw(const PipelineShape& shape) {
    return stream("pipedream-2bw", shape, shape.group_size(), 2);
}

std::optional<core::Unsupported> unsupported_2bw(const PipelineShape& shape) {
    if (shape.group_size() >= shape.ranks) return std::nullopt;
    return core::Unsupported{fmt::format(
        "an update every {} micro-batches (group size) leaves more than two weight versions in {} ranks",
        shape.group_size(), shape.ranks)};
}

}  // namespace

PipelineSchedule pipedream_schedule() {
    PipelineSchedule schedule;
    schedule.name = "pipedream";
    schedule.summary = "asynchronous 1F1B without flush, an update after every backward, weights stashed";
    schedule.source = "arXiv 1806.03377; msr-fiddle/pipedream";
    schedule.bubble = "none in steady state; the slowest stage paces";
    schedule.in_flight = "p-r, each with its own weight version (p-r versions on rank r)";
    schedule.constraint = "one chunk per rank; gradients are stale by up to p-1 updates";
    schedule.greatest_chunks = 1;
    schedule.is_asynchronous = true;
    schedule.generate = generate_pipedream;
    return schedule;
}

PipelineSchedule pipedream_2bw_schedule() {
    PipelineSchedule schedule;
    schedule.name = "pipedream-2bw";
    schedule.parameters = GroupParameters{};
    schedule.summary =
        "asynchronous 1F1B without flush, an update every g micro-batches, two weight versions";
    schedule.source = "arXiv 2006.09503";
    schedule.bubble = "none in steady state; the slowest stage paces";
    schedule.in_flight = "p-r, two weight versions";
    schedule.constraint = "one chunk per rank; g (group size, default p) at least p";
    schedule.greatest_chunks = 1;
    schedule.is_asynchronous = true;
    schedule.unsupported = unsupported_2bw;
    schedule.generate = generate_2bw;
    return schedule;
}

}  // namespace schedule
