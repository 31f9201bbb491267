// The end of a step: every bucket's gradient is whole before its one update, and what was updated in pieces is gathered.
#include <algorithm>

#include <fmt/core.h>

#include "schedule/program_checker.h"

namespace schedule {

void ProgramChecker::check_update(std::size_t c) {
    const RankProgram& l = list(c);
    const Plan& plan = program_.plan;
    struct Seen {
        int data = 0, scatter = 0, replica = 0, tensor = 0, tied = 0, gathered_before = 0, gathered_after = 0;
        std::int32_t step = -1;
        std::vector<std::int32_t> reductions;
    };
    std::vector<Seen> seen(l.buckets.size());
    const double pieces = plan.effective_shard_degree();
    std::int32_t zero = -1;
    // By stage: the first instruction of each pass that makes gradients, in list order.
    std::vector<std::vector<std::int32_t>> passes_begun(program_.stages.size());
    std::vector<std::int32_t> latest_pass(program_.stages.size(), -1);
    bool has_steps = false;
    for (std::size_t n = 0; n < l.instructions.size(); ++n) {
        const Instruction& i = l.instructions[n];
        if (i.kind == InstructionKind::zero_gradients) {
            if (zero >= 0) report("update", c, n, "gradients are zeroed a second time");
            zero = static_cast<std::int32_t>(n);
        }
        if (i.kind == InstructionKind::optimizer_step) {
            has_steps = true;
            for (std::size_t b = 0; b < l.buckets.size(); ++b) {
                if (i.bucket >= 0 && static_cast<std::size_t>(i.bucket) != b) continue;
                if (seen[b].step >= 0) report("update", c, n, fmt::format("bucket {} is updated a second time", b));
                seen[b].step = static_cast<std::int32_t>(n);
            }
        }
        if (i.kind == InstructionKind::compute && i.phase >= ComputePhase::backward) {
            if (zero < 0) report("update", c, n, "gradients are not zeroed before backward");
            else if (!is_ordered(c, zero, n)) report("update", c, n, "does not wait for gradients to be zeroed");
            if (has_steps) report("update", c, n, "stands after an update");
        }
        if (i.kind == InstructionKind::compute && (i.phase == ComputePhase::backward || i.phase == ComputePhase::backward_weight)) {
            const auto stage = static_cast<std::size_t>(i.stage);
            if (latest_pass[stage] != i.micro_batch) passes_begun[stage].push_back(static_cast<std::int32_t>(n));
            latest_pass[stage] = i.micro_batch;
        }
        if (i.kind != InstructionKind::collective || i.bucket < 0) continue;
        const auto b = static_cast<std::size_t>(i.bucket);
        Seen& s = seen[b];
        const auto elements = static_cast<double>(l.buckets[b].padded_elements) / (i.on_shard ? pieces : 1);
        const core::Bytes size = core::size_of(i.payload == PayloadKind::parameter ? plan.precision.parameters : plan.precision.gradients);
        if (i.bytes != elements * size) report("collectives", c, n, fmt::format("its bucket has {:.0f} B", (elements * size).value));
        if (i.payload == PayloadKind::parameter) {
            ++(s.step >= 0 ? s.gathered_after : s.gathered_before);
            if (s.step >= 0 && !is_ordered(c, s.step, n)) report("update", c, n, "does not wait for the update");
            continue;
        }
        if (i.payload != PayloadKind::parameter_gradient) continue;
        if (s.step >= 0) report("update", c, n, "reduces a gradient that has been used already");
        s.reductions.push_back(static_cast<std::int32_t>(n));
        if (i.collective == CollectiveKind::reduce_scatter) ++s.scatter;
        else if (i.group == GroupKind::data) ++s.data;
        else if (i.group == GroupKind::replica) ++s.replica;
        else if (i.group == GroupKind::tensor) ++s.tensor;
        else if (i.group == GroupKind::tied_stages) ++s.tied;
    }
    if (!has_steps) return;
    const bool is_reduced = plan.layout.data > 1, is_sharded = plan.shards(Sharding::optimizer);
    const int passes = plan.shards(Sharding::gradients) ? program_.micro_batches : 1;
    for (std::size_t b = 0; b < seen.size(); ++b) {
        const Seen& s = seen[b];
        const auto expect = [&](int found, int wanted, const char* what) {
            if (found != wanted) report("update", c, fmt::format("bucket {} has {} {}, not {}", b, found, what, wanted));
        };
        if (s.step < 0) {
            report("update", c, fmt::format("bucket {} is never updated", b));
            continue;
        }
        expect(s.data, is_reduced && !is_sharded, "all-reduces over data");
        expect(s.scatter, is_reduced && is_sharded ? passes : 0, "reduce-scatters");
        expect(s.replica, is_sharded && plan.effective_shard_degree() < plan.layout.data, "all-reduces over replicas");
        expect(s.tensor, l.buckets[b].is_partial_over_tensor, "all-reduces over tensor ranks");
        expect(s.tied, !l.buckets[b].tied_ranks.empty(), "all-reduces over tied stages");
        if (plan.shards(Sharding::parameters)) {
            if (s.gathered_before < 2 * program_.micro_batches)
                report("update", c, fmt::format("bucket {} is gathered {} times for {} micro-batches", b, s.gathered_before, program_.micro_batches));
        } else {
            expect(s.gathered_after, is_sharded, "gathers after the update");
        }
        for (const std::int32_t reduction : s.reductions)
            if (!is_ordered(c, reduction, static_cast<std::size_t>(s.step)))
                report("update", c, static_cast<std::size_t>(s.step), fmt::format("does not wait for instruction {}", reduction));
        // A gradient is reduced after the passes that make it: of the last one at least the part that reaches the bucket.
        const std::vector<std::int32_t>& begun = passes_begun[static_cast<std::size_t>(l.buckets[b].stage)];
        for (std::size_t r = 0; r < s.reductions.size(); ++r) {
            const auto at = static_cast<std::size_t>(s.reductions[r]);
            const auto needed =
                std::min(static_cast<std::size_t>(program_.micro_batches), passes > 1 ? r + 1 : static_cast<std::size_t>(program_.micro_batches));
            if (needed > begun.size() || begun[needed - 1] > s.reductions[r] || !is_ordered(c, begun[needed - 1], at))
                report("update", c, at, fmt::format("does not wait for the backward of {} micro-batch{}", needed, needed == 1 ? "" : "es"));
        }
    }
}

}  // namespace schedule
