// The end of a step: every bucket's gradient is whole before its one update, and what was updated in pieces
// is gathered.
#include <algorithm>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "schedule/program/program_checker.h"

namespace schedule {

// Asynchronous: after the backward of every so many micro-batches each bucket is reduced and updated once,
// and gradients are zeroed before the next backward.
void ProgramChecker::check_updates_between(std::int32_t c) {
    const RankProgram& l = list(c);
    const std::size_t buckets = l.buckets.size();
    std::vector<std::int32_t> steps(buckets, 0), reductions(buckets, 0), latest_step(buckets, -1),
        latest_reduction(buckets, -1);
    std::int32_t zero = -1, latest_backward = -1, finished = 0;
    const auto of_update = [&](std::int32_t update) {
        return std::min(program_.micro_batches, (update + 1) * program_.micro_batches_per_update);
    };
    bool has_steps = false;
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        const auto at = n;
        if (i.kind == InstructionKind::zero_gradients) {
            for (std::size_t b = 0; b < buckets; ++b)
                if (latest_step[b] >= 0 && !is_ordered(c, latest_step[b], n))
                    report("update", c, n, fmt::format("does not wait for the update of bucket {}", b));
            zero = at;
        }
        if (i.kind == InstructionKind::compute && i.phase >= ComputePhase::backward) {
            if (zero < 0 || !is_ordered(c, zero, n))
                report("update", c, n, "does not wait for gradients to be zeroed");
            for (std::size_t b = 0; b < buckets; ++b)
                if (latest_step[b] > zero)
                    report("update", c, n,
                           fmt::format("adds to the gradient of bucket {}, which has been used already", b));
            latest_backward = at;
            if (i.phase != ComputePhase::backward_input &&
                i.operators.begin == program_.stages[i.stage].operators.begin)
                ++finished;
        }
        if (i.kind == InstructionKind::collective && i.payload == PayloadKind::parameter_gradient &&
            i.bucket) {
            ++reductions[*i.bucket];
            latest_reduction[*i.bucket] = at;
        }
        if (i.kind != InstructionKind::optimizer_step) continue;
        has_steps = true;
        for (const std::int32_t b : core::indices(l.buckets)) {
            if (i.bucket && *i.bucket != b) continue;
            const std::int32_t update = steps[b]++;
            const auto expect = [&](bool holds, const std::string& what) {
                if (!holds) report("update", c, n, what);
            };
            expect(i.micro_batch == update, fmt::format("is update {} of bucket {}", update, b));
            expect(finished == of_update(update),
                   fmt::format("comes after the backward of {} micro-batches, not {}", finished,
                               of_update(update)));
            expect(latest_backward >= 0 && is_ordered(c, latest_backward, n),
                   "does not wait for the backward before it");
            const int wanted =
                (update + 1) *
                ((groups_of(program_.plan.layout, l.buckets[b]).size > 1 ? 1 : 0) +
                 (l.buckets[b].is_partial_over_tensor ? 1 : 0) + (l.buckets[b].tied_ranks.empty() ? 0 : 1));
            expect(reductions[b] == wanted,
                   fmt::format("bucket {} has been reduced {} times, not {}", b, reductions[b], wanted));
            expect(latest_reduction[b] < 0 || is_ordered(c, latest_reduction[b], n),
                   fmt::format("does not wait for instruction {}", latest_reduction[b]));
            latest_step[b] = at;
        }
    }
    if (!has_steps) return;
    for (std::size_t b = 0; b < buckets; ++b)
        if (steps[b] != program_.updates())
            report("update", c,
                   fmt::format("bucket {} is updated {} times, not {}", b, steps[b], program_.updates()));
}

// Clipping: the norm is taken after every reduction, added up over each group that divides gradients, and
// known before the first update.
void ProgramChecker::check_clipping(std::int32_t c) {
    const RankProgram& l = list(c);
    const Plan& plan = program_.plan;
    std::int32_t norm = -1, first_step = -1;
    std::vector<std::int32_t> sums, reductions;
    std::vector<GroupKind> groups;
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        const auto at = n;
        if (i.kind == InstructionKind::gradient_norm) {
            if (norm >= 0) report("update", c, n, "takes the gradients' norm a second time");
            norm = at;
        }
        if ((i.kind == InstructionKind::optimizer_step || i.kind == InstructionKind::update_norm) &&
            first_step < 0)
            first_step = at;
        if (i.kind != InstructionKind::collective) continue;
        if (i.payload == PayloadKind::parameter_gradient) reductions.push_back(at);
        if (i.payload != PayloadKind::gradient_norm) continue;
        sums.push_back(at);
        groups.push_back(i.group);
    }
    std::vector<GroupKind> wanted;
    if (plan.optimizer.gradient_clipping > 0) {
        if (plan.divides_gradients_by() > 1)
            wanted.push_back(plan.divides_gradients_by() == plan.layout.expert ? GroupKind::expert_data
                                                                               : GroupKind::shard);
        if (plan.layout.tensor > 1) wanted.push_back(GroupKind::tensor);
        if (plan.layout.pipeline > 1) wanted.push_back(GroupKind::pipeline);
    }
    if ((norm >= 0) != (plan.optimizer.gradient_clipping > 0))
        report("update", c,
               norm >= 0 ? "takes a norm that the plan does not ask for" : "gradients are not clipped");
    if (groups != wanted)
        report("update", c,
               fmt::format("adds the gradients' norm up over {} groups, not the {} that divide gradients",
                           groups.size(), wanted.size()));
    if (norm < 0) return;
    for (const std::int32_t reduction : reductions)
        if (!is_ordered(c, reduction, norm))
            report("update", c, norm, fmt::format("does not wait for instruction {}", reduction));
    std::int32_t before = norm;
    for (const std::int32_t sum : sums) {
        if (!is_ordered(c, before, sum))
            report("update", c, sum, fmt::format("does not wait for instruction {}", before));
        before = sum;
    }
    if (!is_ordered(c, before, first_step))
        report("update", c, first_step, fmt::format("does not wait for instruction {}", before));
}

// LAMB: before each update of a bucket its sums are taken, once the gradient is whole, then added up over
// each group that divides the bucket, one group after the other, and known before the step. Rates and moments
// are those of the same update.
void ProgramChecker::check_update_norms(std::int32_t c) {
    const RankProgram& l = list(c);
    const bool are_needed = needs_update_norms(program_.plan.optimizer);
    struct Open {
        std::int32_t norm = -1, latest = -1;  // of the sums, the one that the next waits for
        std::vector<GroupKind> groups;
    };
    std::vector<Open> open(l.buckets.size());
    std::vector<std::int32_t> latest_reduction(l.buckets.size(), -1);
    std::int32_t latest_backward = -1, latest_clip = -1;
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        const auto at = n;
        const auto wait = [&](std::int32_t before) {
            if (before >= 0 && !is_ordered(c, before, n))
                report("update", c, n, fmt::format("does not wait for instruction {}", before));
        };
        if (i.kind == InstructionKind::compute && i.phase >= ComputePhase::backward) {
            latest_backward = at;
            for (const std::int32_t b : core::indices(open))
                if (open[b].norm >= 0)
                    report("update", c, n,
                           fmt::format("adds to the gradient of bucket {}, whose norms have been taken", b));
        }
        const bool is_sum = i.kind == InstructionKind::collective && i.payload == PayloadKind::update_norm;
        if (i.kind == InstructionKind::gradient_norm || i.payload == PayloadKind::gradient_norm)
            latest_clip = at;
        if (!i.bucket) {
            if (i.kind == InstructionKind::optimizer_step && are_needed)
                report("update", c, n, "updates all buckets at once, norms are taken bucket by bucket");
            continue;
        }
        Open& own = open[*i.bucket];
        const ParameterBucket& bucket = l.buckets[*i.bucket];
        if (i.kind == InstructionKind::collective && i.payload == PayloadKind::parameter_gradient) {
            if (own.norm >= 0) report("update", c, n, "reduces a gradient whose norms have been taken");
            latest_reduction[*i.bucket] = at;
        }
        if (i.kind == InstructionKind::update_norm) {
            if (!are_needed) report("update", c, n, "takes norms that the optimizer does not ask for");
            if (own.norm >= 0)
                report("update", c, n, fmt::format("takes the norms of bucket {} a second time", *i.bucket));
            for (const std::int32_t before : {latest_backward, latest_reduction[*i.bucket], latest_clip})
                wait(before);
            own = {at, at, {}};
        } else if (is_sum) {
            if (own.norm < 0)
                report("update", c, n,
                       fmt::format("adds up norms of bucket {} that have not been taken", *i.bucket));
            if (i.collective != CollectiveKind::all_reduce)
                report("update", c, n, "does not leave the sum with every rank");
            if (i.bytes != update_norm_bytes(bucket))
                report("collectives", c, n,
                       fmt::format("two sums for each parameter of its bucket are {:.0f} B",
                                   update_norm_bytes(bucket).value));
            wait(own.latest);
            own.latest = at;
            own.groups.push_back(i.group);
        } else if (i.kind == InstructionKind::optimizer_step && are_needed) {
            if (own.norm < 0) {
                report("update", c, n, fmt::format("comes before the norms of bucket {}", *i.bucket));
                continue;
            }
            const Plan& plan = program_.plan;
            std::vector<GroupKind> wanted;
            if (plan.pieces(bucket.is_expert) > 1) wanted.push_back(GroupKind::shard);
            if (plan.pieces(bucket.is_expert) == 1 && bucket.is_expert)
                wanted.push_back(GroupKind::expert_data);
            if (plan.layout.tensor > 1) wanted.push_back(GroupKind::tensor);
            if (own.groups != wanted)
                report(
                    "update", c, n,
                    fmt::format("norms of bucket {} are added up over {} groups, not the {} that divide it",
                                *i.bucket, own.groups.size(), wanted.size()));
            if (l.instructions[own.norm].micro_batch != i.micro_batch)
                report("update", c, n, "reads norms of another update");
            wait(own.latest);
            own = {};
        }
    }
    for (const Open& left : open)
        if (left.norm >= 0) report("update", c, left.norm, "takes norms that no update reads");
}

void ProgramChecker::add_bucket_collective(std::int32_t c, std::int32_t n, BucketUpdate& s) {
    const Instruction& i = list(c).instructions[n];
    const ParameterBucket& bucket = list(c).buckets[*i.bucket];
    const Plan& plan = program_.plan;
    const auto elements = static_cast<double>(bucket.padded_elements) / (i.on_shard ? bucket.pieces : 1);
    const core::Bytes size = core::size_of(i.payload == PayloadKind::parameter ? plan.precision.parameters
                                                                               : plan.precision.gradients);
    if (i.bytes != elements * size)
        report("collectives", c, n, fmt::format("its bucket has {:.0f} B", (elements * size).value));
    if (i.payload == PayloadKind::parameter) {
        ++(s.step >= 0 ? s.gathered_after : s.gathered_before);
        if (s.step >= 0 && plan.updates_on_hosts() && (s.returned < 0 || !is_ordered(c, s.returned, n)))
            report("update", c, n, "does not wait for what the host updated");
        if (plan.keeps_parameters_on_hosts()) {
            if (s.fetched < 0 || !is_ordered(c, s.fetched, n))
                report("update", c, n, "does not wait for its shard from the host");
            s.fetched = -1;
        }
        if (s.step >= 0 && !is_ordered(c, s.step, n)) report("update", c, n, "does not wait for the update");
        return;
    }
    if (i.payload != PayloadKind::parameter_gradient) return;
    if (s.step >= 0 || (!s.sent.empty() && !bucket.sums_on_host))
        report("update", c, n, "reduces a gradient that has been used already");
    s.reductions.push_back(n);
    if (i.collective == CollectiveKind::reduce_scatter) ++s.scatter;
    else if (i.group == groups_of(plan.layout, bucket).members) ++s.data;
    else if (i.group == GroupKind::replica) ++s.replica;
    else if (i.group == GroupKind::tensor) ++s.tensor;
    else if (i.group == GroupKind::tied_stages) ++s.tied;
}

void ProgramChecker::check_bucket_update(std::int32_t c, std::size_t b, const BucketUpdate& s,
                                         const std::vector<std::int32_t>& begun) {
    const RankProgram& l = list(c);
    const Plan& plan = program_.plan;
    const std::int32_t micro_batches = program_.micro_batches_of_stage();
    const int members = groups_of(plan.layout, l.buckets[b]).size;
    const bool is_reduced = members > 1, is_sharded = l.buckets[b].pieces > 1,
               is_scattered_often = is_sharded && plan.sharding >= Sharding::gradients;
    const int passes = is_scattered_often ? micro_batches : 1;
    const auto expect = [&](int found, int wanted, const char* what) {
        if (found != wanted)
            report("update", c, fmt::format("bucket {} has {} {}, not {}", b, found, what, wanted));
    };
    if (s.step < 0) {
        report("update", c, fmt::format("bucket {} is never updated", b));
        return;
    }
    if (plan.updates_on_hosts()) check_copies(c, b, s, begun);
    expect(s.data, is_reduced && !is_sharded, "all-reduces over data");
    // In a bidirectional schedule a parameter that both ends of the model use has micro-batches of both
    // directions on one rank.
    const bool goes_both_ways =
        is_scattered_often && program_.directions > 1 && s.scatter == program_.directions * passes;
    if (!goes_both_ways) expect(s.scatter, is_reduced && is_sharded ? passes : 0, "reduce-scatters");
    expect(s.replica, is_sharded && l.buckets[b].pieces < members, "all-reduces over replicas");
    expect(s.tensor, l.buckets[b].is_partial_over_tensor, "all-reduces over tensor ranks");
    expect(s.tied, !l.buckets[b].tied_ranks.empty(), "all-reduces over tied stages");
    if ((is_sharded && plan.sharding == Sharding::parameters) || plan.keeps_parameters_on_hosts()) {
        if (s.gathered_before < 2 * micro_batches)
            report("update", c,
                   fmt::format("bucket {} is gathered {} times for {} micro-batches", b, s.gathered_before,
                               micro_batches));
    } else {
        expect(s.gathered_after, is_sharded, "gathers after the update");
    }
    for (const std::int32_t reduction : s.reductions)
        if (!is_ordered(c, reduction, s.step))
            report("update", c, s.step, fmt::format("does not wait for instruction {}", reduction));
    // A gradient is reduced after the passes that make it: of the last one at least the part that reaches
    // the bucket.
    for (std::int32_t r = 0; r < core::count_of(s.reductions) && !goes_both_ways; ++r) {
        const std::int32_t at = s.reductions[r];
        const std::int32_t needed = std::min(micro_batches, passes > 1 ? r + 1 : micro_batches);
        if (needed > core::count_of(begun) || begun[needed - 1] > s.reductions[r] ||
            !is_ordered(c, begun[needed - 1], at))
            report("update", c, at,
                   fmt::format("does not wait for the backward of {} micro-batch{}", needed,
                               needed == 1 ? "" : "es"));
    }
}

void ProgramChecker::check_update(std::int32_t c) {
    check_update_norms(c);
    if (program_.micro_batches_per_update > 0) return check_updates_between(c);
    const RankProgram& l = list(c);
    std::vector<BucketUpdate> seen(l.buckets.size());
    std::int32_t zero = -1;
    // By stage: the first instruction of each pass that makes gradients, in list order.
    std::vector<std::vector<std::int32_t>> passes_begun(program_.stages.size());
    std::vector<std::int32_t> latest_pass(program_.stages.size(), -1);
    bool has_steps = false;
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        if (i.kind == InstructionKind::zero_gradients) {
            if (zero >= 0) report("update", c, n, "gradients are zeroed a second time");
            zero = n;
        }
        if (i.kind == InstructionKind::optimizer_step) {
            has_steps = true;
            for (const std::int32_t b : core::indices(l.buckets)) {
                if (i.bucket && *i.bucket != b) continue;
                if (seen[b].step >= 0)
                    report("update", c, n, fmt::format("bucket {} is updated a second time", b));
                seen[b].step = n;
            }
        }
        if (i.kind == InstructionKind::compute && i.phase >= ComputePhase::backward) {
            if (zero < 0) report("update", c, n, "gradients are not zeroed before backward");
            else if (!is_ordered(c, zero, n))
                report("update", c, n, "does not wait for gradients to be zeroed");
            if (has_steps) report("update", c, n, "stands after an update");
        }
        if (i.kind == InstructionKind::compute &&
            (i.phase == ComputePhase::backward || i.phase == ComputePhase::backward_weight)) {
            const auto stage = i.stage;
            if (latest_pass[stage] != i.micro_batch) passes_begun[stage].push_back(n);
            latest_pass[stage] = i.micro_batch;
        }
        if (i.kind == InstructionKind::copy && i.bucket) add_bucket_copy(c, n, seen[*i.bucket]);
        if (i.kind != InstructionKind::collective || !i.bucket || i.payload == PayloadKind::update_norm)
            continue;
        add_bucket_collective(c, n, seen[*i.bucket]);
    }
    if (!has_steps) return;
    check_clipping(c);
    for (const std::int32_t b : core::indices(seen))
        check_bucket_update(c, b, seen[b], passes_begun[l.buckets[b].stage]);
}

}  // namespace schedule
