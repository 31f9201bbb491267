// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473) with Megatron-LM's micro-batch group size per virtual
// stage.
#include <fmt/core.h>

#include <algorithm>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

// More micro-batches than there are cannot be grouped: one group then.
int group_of(const PipelineShape& shape) { return std::min(shape.group_size(), shape.micro_batches); }

// With several groups each needs at least p micro-batches, or a rank would wait for its own later output.
// Megatron-LM also refuses m < p, PyTorch does not.
std::optional<core::Unsupported> unsupported(const PipelineShape& shape) {
    const int group = group_of(shape), rest = shape.micro_batches % group;
    if (shape.chunks == 1 || group == shape.micro_batches) return std::nullopt;
    if (group < shape.ranks)
        return core::Unsupported{
            fmt::format("group size {} is less than {} ranks (and less than {} micro-batches)", group,
                        shape.ranks, shape.micro_batches)};
    if (rest != 0 && rest < shape.ranks)
        return core::Unsupported{
            fmt::format("the last group has {} of {} micro-batches (group size {}), fewer than {} ranks",
                        rest, shape.micro_batches, group, shape.ranks)};
    return std::nullopt;
}

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("interleaved-1f1b", shape);
    const int group = group_of(shape), total = shape.chunks * shape.micro_batches;
    const std::vector<ChunkStep> order = grouped_order(shape.micro_batches, shape.chunks, group);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = schedule.actions[rank];
        const int warm_up = shape.chunks == 1
                                ? std::min(shape.ranks - 1 - rank, total)
                                : std::min(2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * group, total);
        auto forward = [&](int k) {
            const ChunkStep& step = order[k];
            list.push_back(forward_of(step.chunk * shape.ranks + rank, step.micro_batch));
        };
        // Backwards pass through the chunks in the opposite direction, in the same groups.
        auto backward = [&](int k) {
            const ChunkStep& step = order[k];
            list.push_back(
                backward_of((shape.chunks - 1 - step.chunk) * shape.ranks + rank, step.micro_batch));
        };
        for (int k = 0; k < warm_up; ++k) forward(k);
        for (int k = 0; k + warm_up < total; ++k) {
            forward(k + warm_up);
            backward(k);
        }
        for (int k = total - warm_up; k < total; ++k) backward(k);
    }
    return schedule;
}

}  // namespace

PipelineSchedule interleaved_1f1b_schedule() {
    PipelineSchedule schedule;
    schedule.name = "interleaved-1f1b";
    schedule.parameters = GroupParameters{};
    schedule.aliases = {"megatron-interleaved", "vpp", "virtual-pipeline"};
    schedule.summary =
        "1F1B over v chunks per rank, micro-batches in groups of g (Megatron-LM interleaving; not SMP's "
        "`interleaved`)";
    schedule.source = "arXiv 2104.04473; Megatron-LM get_schedule_table";
    schedule.bubble = "(p-1)/(vm+p-1)";
    schedule.in_flight = "min(vm, (v-1)g + 2(p-1-r) + 1) chunks";
    schedule.constraint = "g >= p with m mod g 0 or at least p, or g >= m (any m with one chunk)";
    schedule.unsupported = unsupported;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
