#include "sim/short_steps.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/diagnostics.h"
#include "schedule/pipeline/registry.h"
#include "sim/report/breakdown.h"

namespace sim {

namespace {

constexpr core::Bytes ClassMemory::* memory_parts[] = {
    &ClassMemory::peak,      &ClassMemory::parameters,  &ClassMemory::gradients,
    &ClassMemory::optimizer, &ClassMemory::activations, &ClassMemory::workspace,
    &ClassMemory::overhead,  &ClassMemory::reserved,    &ClassMemory::process,
};

// Share of a figure by which three figures on a straight line may miss it: rounding of their sums.
constexpr double straight = 1e-9;

bool is_straight(double a, double b, double c) {
    return std::abs(c - 2 * b + a) <= straight * std::max({std::abs(a), std::abs(b), std::abs(c)});
}

bool are_straight(const StepRun& a, const StepRun& b, const StepRun& c) {
    if (!is_straight(a.step.value, b.step.value, c.step.value) ||
        !is_straight(a.host_memory.value, b.host_memory.value, c.host_memory.value))
        return false;
    for (std::size_t i = 0; i < a.memory.size(); ++i)
        for (core::Bytes ClassMemory::* part : memory_parts)
            if (!is_straight((a.memory[i].*part).value, (b.memory[i].*part).value, (c.memory[i].*part).value))
                return false;
    for (const BreakdownPart& part : breakdown_parts())
        if (std::abs((a.breakdown.*part.part - b.breakdown.*part.part * 2 + c.breakdown.*part.part).value) >
            straight * c.step.value)
            return false;
    return true;
}

// Ends of a performer's instructions, in the order of its list.
std::vector<double> ends_of(const StepRun& run, std::size_t performer) {
    std::vector<double> ends(run.timeline.spans[performer].size());
    for (const schedule::Span& span : run.timeline.spans[performer]) ends[span.instruction] = span.end.value;
    return ends;
}

// By how much everything of the longer run's second half ends later than that of the shorter run, and nothing
// of its first half does; nothing where that is not one and the same time on all performers.
std::optional<double> common_delay(const StepRun& shorter, const StepRun& longer) {
    const double tolerance = straight * longer.step.value;
    std::optional<double> delay;
    if (shorter.timeline.spans.size() != longer.timeline.spans.size()) return std::nullopt;
    for (std::size_t p = 0; p < shorter.timeline.spans.size(); ++p) {
        const std::vector<double> a = ends_of(shorter, p), b = ends_of(longer, p);
        if (b.size() < a.size()) return std::nullopt;
        const std::size_t half = (a.size() + 1) / 2;
        for (std::size_t i = 0; i < half; ++i) {
            const double later = b[b.size() - 1 - i] - a[a.size() - 1 - i];
            if (!delay) delay = later;
            if (std::abs(later - *delay) > tolerance || std::abs(b[i] - a[i]) > tolerance)
                return std::nullopt;
        }
    }
    return delay;
}

// Is the step one period longer each time, with all that happens before and behind it the same? Its ends are
// then a function of those one period before that only adds a time, and adds it again with every further
// period (sim/engine/schedule_extrapolation.h says why).
bool repeats(const StepRun& a, const StepRun& b, const StepRun& c) {
    const std::optional<double> first = common_delay(a, b), second = common_delay(b, c);
    return first && second && std::abs(*first - *second) <= straight * c.step.value;
}

// Micro-batch counts after which a schedule repeats itself: the groups of the interleaved schedule, else one
// round over the pipeline.
int period_of(const schedule::Plan& plan) {
    return std::lcm(std::max(1, plan.layout.pipeline),
                    std::max(1, plan.parameters<schedule::GroupParameters>().group_size));
}

// The straight line through b and c, `periods` further on.
StepRun extrapolate(const StepRun& b, StepRun c, double periods) {
    const auto onward = [periods](auto from, auto to) { return to + (to - from) * periods; };
    c.step = onward(b.step, c.step);
    c.host_memory = onward(b.host_memory, c.host_memory);
    for (const BreakdownPart& part : breakdown_parts())
        c.breakdown.*part.part = onward(b.breakdown.*part.part, c.breakdown.*part.part);
    for (std::size_t i = 0; i < c.memory.size(); ++i)
        for (core::Bytes ClassMemory::* part : memory_parts)
            c.memory[i].*part = onward(b.memory[i].*part, c.memory[i].*part);
    c.recompute_flops = onward(b.recompute_flops, c.recompute_flops);
    return c;
}

// Through steps of two numbers of micro-batches.
std::optional<StepRun> run_on_a_line(const StepTask& task, int total, std::pair<int, int> through,
                                     Extrapolation& made) {
    core::Diagnostics unneeded;
    const std::optional<StepRun> shorter = run_step(task, through.first, unneeded);
    std::optional<StepRun> longer = run_step(task, through.second, unneeded);
    if (!shorter || !longer) return std::nullopt;
    made = {fmt::format("{} micro-batches are taken to lie on a line with {} and {}", total, through.first,
                        through.second),
            through.second};
    return extrapolate(*shorter, std::move(*longer),
                       double(total - through.second) / (through.second - through.first));
}

// Of the whole step's micro-batches, in all short steps: more would gain little.
constexpr double most_of_the_whole = 0.75;

// Does a short step exceed the memory while it is still as the whole one, whose order has the same front
// half (repeated_block)? What comes before an instruction of that half, on any rank, is less than one round
// over the pipeline ahead of it.
bool overflows_as_the_whole(const StepTask& task, const StepRun& run) {
    constexpr double surely_in_front = 0.4;  // of a list, which has more of its own at the end
    if (!task.options.stops_at_overflow || !run.out_of_memory) return false;
    const OutOfMemory& overflow = *run.out_of_memory;
    if (!overflow.instruction) return true;
    const std::size_t class_index = std::size_t(run.timeline.class_of[overflow.performer]);
    return double(*overflow.instruction) <
           surely_in_front * double(run.program->classes[class_index].instructions.size());
}

}  // namespace

std::optional<StepRun> run_from_one(const StepTask& task, int total, int most, Extrapolation& made,
                                    bool& is_hopeless) {
    // What did not settle is tried with half as many micro-batches more, if all tries are half of the whole.
    constexpr double longer = 1.5, most_tried = 0.5;
    const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(task.plan.schedule);
    if (!task.costs || !found || found->orders_by_times) return std::nullopt;
    core::Diagnostics unneeded;
    RepeatedBlocks of_this;
    RepeatedBlocks& blocks = task.options.blocks ? *task.options.blocks : of_this;
    LoweredPrograms* const known = kept_runs(task);
    const int ranks = task.plan.layout.pipeline;
    // The least that can be steady, then rounds over the pipeline.
    std::vector<int> counts = {2 * ranks + 2, 2 * ranks + 3};
    for (int rounds = 3; rounds * ranks <= most; ++rounds) counts.push_back(rounds * ranks + total % ranks);
    if (known && known->line_through) return run_on_a_line(task, total, *known->line_through, made);
    int simulated = 0, last = 0, before = 0;
    // Copies may not keep pace with what they make room for: memory is asked first, of the shortest.
    bool asks_memory = task.options.stops_at_overflow && task.plan.offload != schedule::Offload::none;
    for (const int count : counts) {
        if (count > most || simulated + count > (simulated > 0 ? most_tried : most_of_the_whole) * total)
            break;
        const bool is_in_vain = count < longer * last || count < task.options.least_micro_batches ||
                                (known && known->steady_at && count < *known->steady_at);
        if (is_in_vain && !asks_memory) continue;
        const std::optional<RepeatedBlocks::Block> block = blocks.of(task.plan, count, total);
        if (!block) continue;
        asks_memory = false;
        // Copies may settle, and no performer's list repeat itself.
        is_hopeless = task.plan.offload == schedule::Offload::none;
        simulated += count;
        before = std::exchange(last, count);
        std::optional<StepRun> one = run_step(task, count, unneeded, block->micro_batches);
        if (one && overflows_as_the_whole(task, *one)) {
            is_hopeless = false;
            one->overflows_early = true;
            return one;
        }
        const int repeats = one && one->steady ? block->micro_batches * one->steady->blocks : 0;
        if (repeats == 0 || block->more % repeats != 0) continue;
        if (known) known->steady_at = count;
        const double periods = double(block->more) / repeats;
        one->step += one->steady->period * periods;
        for (const BreakdownPart& part : breakdown_parts())
            one->breakdown.*part.part += one->block.*part.part * periods;
        one->recompute_flops = one->recompute_flops * (double(total) / count);
        made = {
            fmt::format(
                "{} micro-batches follow from {}: the schedule is in its steady state, in which {} take {}",
                total, count, repeats * block->directions, core::format(one->steady->period)),
            count};
        return one;
    }
    if (!known || !known->takes_a_line || known->steady_at || before == 0) return std::nullopt;
    known->line_through = {before, last};
    return run_on_a_line(task, total, *known->line_through, made);
}

std::optional<StepRun> run_extrapolated(const StepTask& task, int total, int most, Extrapolation& made) {
    constexpr int steps_of_a_line = 3;
    const int period = period_of(task.plan);
    if (total <= most || most < steps_of_a_line * period) return std::nullopt;
    core::Diagnostics unneeded;  // a count the schedule does not allow: the whole step is simulated instead
    LoweredPrograms* const known = kept_runs(task);
    const bool was_straight = known && known->straight_at;
    // The shortest has a round of micro-batches and more; all are congruent to the total.
    int count = was_straight ? *known->straight_at - period : period + total % period;
    while (!was_straight && count + steps_of_a_line * period <= task.options.least_micro_batches)
        count += period;
    std::vector<StepRun> runs;  // the last ones
    int simulated = 0;
    for (; count <= most; count += period) {
        simulated += count;
        if (!was_straight && simulated > most_of_the_whole * total) return std::nullopt;
        std::optional<StepRun> next = run_step(task, count, unneeded);
        if (!next) return std::nullopt;
        runs.push_back(std::move(*next));
        const std::size_t last = runs.size() - 1;
        if (was_straight ? last == 1
                         : last == 2 && are_straight(runs[0], runs[1], runs[2]) &&
                               (!task.costs || repeats(runs[0], runs[1], runs[2]))) {
            if (known) known->straight_at = count;
            made = {fmt::format("{} micro-batches follow from {}, {} and {} on a straight line: the schedule "
                                "is in its steady state",
                                total, count - 2 * period, count - period, count),
                    count};
            return extrapolate(runs[last - 1], std::move(runs[last]),
                               static_cast<double>(total - count) / period);
        }
        if (last == 2) runs.erase(runs.begin());
    }
    return std::nullopt;
}

}  // namespace sim
