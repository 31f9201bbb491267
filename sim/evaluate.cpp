#include "sim/evaluate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/verify.h"
#include "sim/cost/collective/library.h"
#include "sim/cost/contention.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/cost/framework/framework_catalogue.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/host_memory.h"
#include "sim/cost/pricing.h"
#include "sim/engine/overlapped_compute.h"
#include "sim/engine/shared_cores.h"
#include "sim/engine/simulate.h"
#include "sim/engine/steady_state.h"
#include "sim/priced_partition.h"
#include "sim/report/breakdown.h"
#include "sim/report/memory_report.h"
#include "sim/report/overflow_place.h"

namespace sim {

namespace {

// What one simulated Program says; every number is eventually linear in the number of micro-batches.
struct Run {
    core::Seconds step;
    Breakdown breakdown;
    std::vector<ClassMemory> memory;
    std::optional<OutOfMemory> out_of_memory;
    core::Flops recompute_flops;  // of all ranks
    core::Bytes host_memory;      // of offloaded activations on the fullest node
    schedule::Timeline timeline;
    std::size_t critical_performer = 0;
    std::vector<core::Seconds> active_from;
    schedule::MemoryTimeline memory_timeline;
    std::shared_ptr<const schedule::Program> program;
    std::size_t ranks = 0, classes = 0, contended_links = 0;
    std::optional<SteadyState> steady;  // where it was looked for and found
    Breakdown block;                    // of its period
};

constexpr core::Bytes ClassMemory::* memory_parts[] = {
    &ClassMemory::peak,      &ClassMemory::parameters,  &ClassMemory::gradients,
    &ClassMemory::optimizer, &ClassMemory::activations, &ClassMemory::workspace,
    &ClassMemory::overhead,  &ClassMemory::reserved,    &ClassMemory::process,
};

}  // namespace

struct SimulatedProgram {
    PricedProgram priced;  // as each instruction takes alone
    std::vector<Communication> communications;
    double overlap_loss = 0;
    FrameworkMemory framework;
    Run run;
};

namespace {

struct Task {
    const model::ModelGraph& graph;
    const cluster::Cluster& cluster;
    const schedule::Plan& plan;
    const EvaluateOptions& options;
    CostModels* costs;             // null: memory only
    ContentionFinder* contention;  // null where costs are
    bool blocks_on_transfers = false;
    FrameworkMemory framework;
    core::Bytes available;  // of one rank
    std::size_t* simulated_instructions;
};

// On ranks of a CPU the Program's buffers are all there is: the executor allocates them and nothing else.
bool is_accelerator(const Task& task) { return task.cluster.instance.device.has_concurrent_streams; }

ClassMemory class_memory(const Task& task, const schedule::Program& program, int class_index,
                         const Simulation& simulation, std::size_t performer) {
    using schedule::MemoryKind;
    const MemoryByKind& held = simulation.memory.at_peak[performer];
    const auto of = [&](MemoryKind kind) { return held[core::position_of(kind)]; };
    const double slack = task.cluster.instance.device.fragmentation;
    const core::Bytes outside = is_accelerator(task)
                                    ? outside_memory(program, class_index, task.cluster, task.framework)
                                    : core::Bytes(0);
    const core::Bytes allocated = simulation.memory.peak[performer];
    ClassMemory memory;
    memory.pipeline = program.classes[class_index].pipeline;
    for (const std::int32_t s : core::indices(program.stages))
        if (program.stages[s].rank == memory.pipeline) memory.stages.push_back(s);
    memory.parameters = of(MemoryKind::parameters);
    memory.gradients = of(MemoryKind::gradients);
    memory.optimizer = of(MemoryKind::optimizer);
    memory.activations = of(MemoryKind::activations);
    memory.workspace = of(MemoryKind::workspace) + of(MemoryKind::communication);
    const core::Bytes persistent = simulation.memory_peak[performer].persistent;
    memory.overhead = of(MemoryKind::overhead) + outside + (allocated - persistent) * slack;
    memory.peak = memory.parameters + memory.gradients + memory.optimizer + memory.activations +
                  memory.workspace + memory.overhead;
    // Blocks freed by one kind of use are seldom of a size that another can take: each kind keeps what it had
    // at its own peak.
    const core::Bytes kept =
        task.framework.caches_blocks
            ? persistent + (sum(simulation.memory_peak[performer].of_kind) - persistent) * (1 + slack)
            : allocated;
    memory.process =
        std::max(std::min(kept + outside, task.available), std::min(memory.peak, kept + outside));
    memory.reserved = memory.process - outside;
    return memory;
}

OutOfMemory describe_overflow(const Task& task, const schedule::Program& program,
                              const Simulation& simulation, std::size_t performer, Overflow overflow,
                              core::Bytes outside, core::Bytes limit) {
    const std::int32_t class_index = simulation.timeline.class_of[performer];
    std::optional<std::int32_t> op;
    if (overflow.instruction) {
        const schedule::RankProgram& list = program.classes[class_index];
        const core::Bytes room = limit - (sum(overflow.held) - overflow.asked);
        if (const auto place =
                place_in_forward_pass(program, task.graph, list, *overflow.instruction, room)) {
            overflow.held[core::position_of(schedule::MemoryKind::activations)] +=
                place->taken - overflow.asked;
            overflow.asked = place->asked;
            overflow.instruction = place->instruction;
            overflow.time = simulation.timeline.spans[performer][place->instruction].start;
            op = place->op;
        }
    }
    OutOfMemory failure;
    failure.pipeline = program.classes[class_index].pipeline;
    failure.rank = simulation.timeline.rank[performer];
    failure.performer = performer;
    failure.time = overflow.time;
    failure.asked = overflow.asked;
    failure.available = task.available;
    failure.held = overflow.held;
    const core::Bytes passing = sum(overflow.held) - simulation.memory_peak[performer].persistent;
    failure.held[core::position_of(schedule::MemoryKind::overhead)] +=
        outside + passing * task.cluster.instance.device.fragmentation;
    failure.needed = sum(failure.held);
    failure.instruction = overflow.instruction;
    if (!overflow.instruction) {
        failure.what = "parameters, gradients and optimizer state, before the step begins";
        return failure;
    }
    const schedule::Instruction& instruction =
        program.classes[class_index].instructions[*overflow.instruction];
    failure.what = schedule::describe(program, class_index, *overflow.instruction);
    failure.stream = schedule::name_of(instruction.stream);
    if (instruction.stage >= 0) failure.stage = instruction.stage;
    if (instruction.micro_batch >= 0)
        failure.micro_batch = program.whole_micro_batch_of(instruction.micro_batch);
    if (op) {
        failure.operators = task.graph.operators[*op].name;
    } else if (instruction.operators.size() > 0) {
        const auto name = [&](std::int32_t i) { return task.graph.operators[i].name; };
        failure.operators = name(instruction.operators.begin);
        if (instruction.operators.size() > 1)
            *failure.operators += " ... " + name(instruction.operators.end - 1);
    }
    return failure;
}

// The earliest over all performers, when the largest of them do not fit.
std::optional<OutOfMemory> find_overflow(const Task& task, const schedule::Program& program,
                                         const Simulation& simulation, const std::vector<ExtraMemory>* extra,
                                         const std::vector<ClassMemory>& memory) {
    static const ExtraMemory none;
    std::optional<OutOfMemory> earliest;
    for (std::size_t p = 0; p < simulation.timeline.spans.size(); ++p) {
        const std::size_t c = simulation.timeline.class_of[p];
        if (memory[c].peak <= task.available) continue;
        const core::Bytes outside =
            is_accelerator(task) ? outside_memory(program, static_cast<int>(c), task.cluster, task.framework)
                                 : core::Bytes(0);
        const double slack = task.cluster.instance.device.fragmentation;
        const core::Bytes limit =
            (task.available - outside + simulation.memory_peak[p].persistent * slack) / (1 + slack);
        const std::optional<Overflow> overflow = first_overflow(
            program.classes[c], extra ? (*extra)[c] : none, simulation.timeline.spans[p], limit);
        if (overflow && (!earliest || overflow->time < earliest->time))
            earliest = describe_overflow(task, program, simulation, p, *overflow, outside, limit);
    }
    return earliest;
}

// Compute that runs beside collectives is known from a first run of the classes; the step is the run with
// what they cost it.
OverlapLosses slow_overlapped(const Task& task, const schedule::Program& program, Simulator& simulator,
                              const SimulateOptions& options, const Contention& contention,
                              PricedProgram& priced) {
    if (task.options.constants.overlap_loss <= 0 || !has_collectives_beside_compute(program)) return {};
    SimulateOptions first = options;
    first.is_folded = true;
    first.tracks_memory = false;
    first.contention = &contention;
    return slow_overlapped_compute(program,
                                   options.is_folded ? simulator.simulate(priced.durations, first)
                                                     : simulate(program, priced.durations, first),
                                   task.options.constants.overlap_loss, task.cluster.instance.device,
                                   task.costs->communication, priced.durations);
}

// What the simulation shows of each class is that of its fullest performer.
std::vector<ClassMemory> class_memories(const Task& task, const schedule::Program& program,
                                        const Simulation& simulation) {
    std::vector<ClassMemory> memories;
    for (const std::int32_t c : core::indices(program.classes)) {
        std::optional<std::size_t> fullest;  // performer of the class
        for (std::size_t p = 0; p < simulation.timeline.class_of.size(); ++p)
            if (simulation.timeline.class_of[p] == c &&
                (!fullest || simulation.memory.peak[p] > simulation.memory.peak[*fullest]))
                fullest = p;
        memories.push_back(class_memory(task, program, c, simulation, *fullest));
    }
    return memories;
}

void require_valid(const schedule::Program& program) {
    const std::vector<schedule::Violation> violations = schedule::verify(program);
    if (!violations.empty())
        throw core::InternalError("broken promise: lowering made a program that breaks the rule \"" +
                                  violations[0].rule + "\": " + violations[0].message);
}

LoweredPrograms::Entry* find_lowered(LoweredPrograms& known, const Task& task, int micro_batches) {
    for (LoweredPrograms::Entry& entry : known.entries)
        if (entry.micro_batches == micro_batches && entry.partition == task.plan.partition) return &entry;
    return nullptr;
}

// Null: what follows from prices is not kept.
LoweredPrograms* kept_runs(const Task& task) {
    LoweredPrograms* const lowered = task.options.lowered;
    return lowered && lowered->keeps_runs ? lowered : nullptr;
}

// Null where the plan's schedule cannot have so many micro-batches.
std::shared_ptr<const schedule::Program> lowered_program(const Task& task, int micro_batches,
                                                         core::Diagnostics& diagnostics) {
    LoweredPrograms* const known = task.options.lowered;
    if (known)
        if (const LoweredPrograms::Entry* entry = find_lowered(*known, task, micro_batches))
            return entry->program;
    const std::optional<schedule::Schedule> order =
        schedule::make_schedule(task.plan, diagnostics, micro_batches);
    if (!order) return nullptr;
    auto program = std::make_shared<const schedule::Program>(
        schedule::lower(task.plan, task.graph, *order,
                        {.micro_batches = micro_batches,
                         .has_optimizer = !order->is_forward_only,
                         .hashes_model = task.options.verifies || task.options.keeps_timeline,
                         .repetition = task.options.repetition}));
    if (known) known->entries.push_back({micro_batches, task.plan.partition, program, {}, {}, {}, {}});
    return program;
}

// The same whatever the times are, so kept with the Program.
std::vector<ExtraMemory> memory_beside(const Task& task, int micro_batches,
                                       const schedule::Program& program) {
    if (!task.options.lowered)
        return extra_memory(program, task.graph, task.framework, task.options.repetition);
    LoweredPrograms::Entry& entry = *find_lowered(*task.options.lowered, task, micro_batches);
    if (entry.framework != task.framework) {
        entry.extra = extra_memory(program, task.graph, task.framework, task.options.repetition);
        entry.framework = task.framework;
    }
    return entry.extra;
}

// Kept with the Program too.
std::shared_ptr<Simulator> kept_simulator(const Task& task, int micro_batches,
                                          const schedule::Program& program, const SimulateOptions& options) {
    if (!task.options.lowered) return std::make_shared<Simulator>(program, options);
    std::shared_ptr<Simulator>& kept = find_lowered(*task.options.lowered, task, micro_batches)->simulator;
    if (!kept || !kept->is_for(options)) kept = std::make_shared<Simulator>(program, options);
    return kept;
}

bool is_same(const Communication& a, const Communication& b) {
    return a.latency == b.latency && a.streaming == b.streaming && a.priced == b.priced &&
           a.weight == b.weight &&
           std::equal(a.uses.begin(), a.uses.end(), b.uses.begin(), b.uses.end(),
                      [](const ResourceUse& x, const ResourceUse& y) {
                          return x.resource == y.resource && x.share == y.share;
                      });
}

// Null where constants have changed a price since the first simulation.
const Run* known_run(const Task& task, int micro_batches, const PricedProgram& priced,
                     const Contention& contention) {
    LoweredPrograms* const kept = kept_runs(task);
    if (!kept) return nullptr;
    const SimulatedProgram* known = find_lowered(*kept, task, micro_batches)->simulated.get();
    const bool is_known =
        known && known->priced.durations.of == priced.durations.of && known->priced.host == priced.host &&
        known->framework == task.framework && known->overlap_loss == task.options.constants.overlap_loss &&
        std::equal(known->communications.begin(), known->communications.end(),
                   contention.communications.begin(), contention.communications.end(), is_same);
    return is_known ? &known->run : nullptr;
}

// The first one: the constants that others are compared with.
void remember_run(const Task& task, int micro_batches, PricedProgram priced, const Contention& contention,
                  const Run& result) {
    LoweredPrograms* const kept = kept_runs(task);
    if (!kept) return;
    LoweredPrograms::Entry& entry = *find_lowered(*kept, task, micro_batches);
    if (entry.simulated) return;
    entry.simulated = std::make_shared<const SimulatedProgram>(
        SimulatedProgram{std::move(priced), contention.communications, task.options.constants.overlap_loss,
                         task.framework, result});
}

// `block`: of micro-batches a direction, for which a steady state is looked for.
std::optional<Run> run(const Task& task, int micro_batches, core::Diagnostics& diagnostics,
                       std::optional<int> block = {}) {
    const std::shared_ptr<const schedule::Program> lowered =
        lowered_program(task, micro_batches, diagnostics);
    if (!lowered) return std::nullopt;
    const schedule::Program& program = *lowered;
    for (const schedule::RankProgram& list : program.classes)
        *task.simulated_instructions += list.instructions.size();
    if (task.options.verifies) require_valid(program);

    PricedProgram priced, alone;
    SimulateOptions simulate_options;
    simulate_options.has_concurrent_streams = task.cluster.instance.device.has_concurrent_streams;
    simulate_options.keeps_memory_samples = task.options.keeps_timeline;
    simulate_options.blocks_on_transfers = task.blocks_on_transfers;
    simulate_options.is_folded = task.options.is_folded;
    std::shared_ptr<Simulator> simulator;
    const auto simulator_of = [&]() -> Simulator& {
        if (!simulator) simulator = kept_simulator(task, micro_batches, program, simulate_options);
        return *simulator;
    };
    Contention contention;
    OverlapLosses losses;
    if (task.costs) {
        priced = price(program, *task.costs);
        // Where a core does the copying, links are not what ranks wait for.
        const bool shares_links = simulate_options.has_concurrent_streams &&
                                  program.plan.layout.ranks() > 1 && task.options.shares_links;
        if (shares_links) contention = task.contention->find(program);
        if (const Run* known = known_run(task, micro_batches, priced, contention)) return *known;
        if (kept_runs(task)) alone = priced;
        if (shares_links) {
            losses = slow_overlapped(task, program, simulator_of(), simulate_options, contention, priced);
            if (!task.options.is_folded)
                contention = find_contention(program, task.costs->communication, false);
        }
        simulate_options.contention = &contention;
    } else {
        // Without times the order of the lists decides what is held together.
        simulate_options.has_concurrent_streams = false;
        for (const schedule::RankProgram& list : program.classes)
            priced.durations.of.emplace_back(list.instructions.size());
    }
    std::optional<std::vector<ExtraMemory>> extra;
    simulate_options.tracks_memory = !task.options.step_only;
    if (is_accelerator(task) && !task.options.step_only) extra = memory_beside(task, micro_batches, program);
    simulate_options.extra_memory = extra ? &*extra : nullptr;
    // CPU ranks beyond the cores take turns on them; every rank is then a performer of its own.
    const bool shares_cores = !simulate_options.has_concurrent_streams && task.costs &&
                              program.plan.layout.ranks() > task.cluster.device_count();
    Simulation simulation =
        shares_cores
            ? simulate_shared_cores(program, priced.durations, task.cluster.device_count(), simulate_options)
            : simulator_of().simulate(priced.durations, simulate_options);

    Run result;
    result.ranks = program.class_of_rank.size();
    result.classes = task.options.is_folded ? program.classes.size() : result.ranks;
    result.contended_links = contention.links;
    if (!task.options.step_only) {
        result.host_memory = offloaded_to_a_host(program, task.cluster);
        result.memory = class_memories(task, program, simulation);
        result.out_of_memory =
            find_overflow(task, program, simulation, simulate_options.extra_memory, result.memory);
    }
    if (!task.costs) return result;
    result.step = simulation.timeline.makespan;
    result.critical_performer = critical_performer(program, simulation);
    if (!task.options.step_only)
        result.breakdown = break_down(program, simulation, priced.host, result.critical_performer,
                                      simulate_options.has_concurrent_streams, losses);
    if (block)
        result.steady = find_steady_state(program, simulation.timeline, *block, result.critical_performer);
    if (result.steady && !task.options.step_only)
        result.block =
            break_down(program, simulation, priced.host, result.critical_performer,
                       simulate_options.has_concurrent_streams, losses,
                       TimeWindow{result.steady->from, result.steady->from + result.steady->period});
    for (std::int32_t class_index : program.class_of_rank)
        result.recompute_flops += priced.recompute_flops[class_index];
    if (task.options.keeps_timeline || task.options.most_micro_batches) {
        result.timeline = std::move(simulation.timeline);
        result.active_from = std::move(simulation.active_from[result.critical_performer]);
        result.memory_timeline = std::move(simulation.memory);
        result.program = lowered;
    }
    remember_run(task, micro_batches, std::move(alone), contention, result);
    return result;
}

// Share of a figure by which three figures on a straight line may miss it: rounding of their sums.
constexpr double straight = 1e-9;

bool is_straight(double a, double b, double c) {
    return std::abs(c - 2 * b + a) <= straight * std::max({std::abs(a), std::abs(b), std::abs(c)});
}

bool are_straight(const Run& a, const Run& b, const Run& c) {
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
std::vector<double> ends_of(const Run& run, std::size_t performer) {
    std::vector<double> ends(run.timeline.spans[performer].size());
    for (const schedule::Span& span : run.timeline.spans[performer]) ends[span.instruction] = span.end.value;
    return ends;
}

// By how much everything of the longer run's second half ends later than that of the shorter run, and nothing
// of its first half does; nothing where that is not one and the same time on all performers.
std::optional<double> common_delay(const Run& shorter, const Run& longer) {
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
bool repeats(const Run& a, const Run& b, const Run& c) {
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
Run extrapolate(const Run& b, Run c, double periods) {
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

// What a step follows from.
struct Extrapolation {
    std::string how;
    int from = 0;  // micro-batches of the longest step that was simulated for it
};

// Through steps of two numbers of micro-batches.
std::optional<Run> run_on_a_line(const Task& task, int total, std::pair<int, int> through,
                                 Extrapolation& made) {
    core::Diagnostics unneeded;
    const std::optional<Run> shorter = run(task, through.first, unneeded);
    std::optional<Run> longer = run(task, through.second, unneeded);
    if (!shorter || !longer) return std::nullopt;
    made = {fmt::format("{} micro-batches are taken to lie on a line with {} and {}", total, through.first,
                        through.second),
            through.second};
    return extrapolate(*shorter, std::move(*longer),
                       double(total - through.second) / (through.second - through.first));
}

// Of the whole step's micro-batches, in all short steps: more would gain little.
constexpr double most_of_the_whole = 0.75;

// One short step that is in its steady state, with as many more blocks as the whole has. Nothing where no
// step up to `most` is, where orders differ in more than repetitions of a block, or depend on times, and
// where activations are copied to hosts. `is_hopeless`: it repeats itself, but settles too late.
std::optional<Run> run_from_one(const Task& task, int total, int most, Extrapolation& made,
                                bool& is_hopeless) {
    // What did not settle is tried with half as many micro-batches more, if all tries are half of the whole.
    constexpr double longer = 1.5, most_tried = 0.5;
    const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(task.plan.schedule);
    if (!task.costs || !found || found->orders_by_times || task.plan.offload != schedule::Offload::none)
        return std::nullopt;
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
    for (const int count : counts) {
        if (count > most || simulated + count > (simulated > 0 ? most_tried : most_of_the_whole) * total)
            break;
        if (count < longer * last || count < task.options.least_micro_batches ||
            (known && known->steady_at && count < *known->steady_at))
            continue;
        const std::optional<RepeatedBlocks::Block> block = blocks.of(task.plan, count, total);
        if (!block) continue;
        is_hopeless = true;
        simulated += count;
        before = std::exchange(last, count);
        std::optional<Run> one = run(task, count, unneeded, block->micro_batches);
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

// Lowers short steps, a period apart; when two differ as the two before them do, in every instruction's end,
// the schedule has reached its steady state and the rest is a straight line (makespan is eventually linear in
// micro-batches: max-plus algebra, Baccelli et al., Synchronization and Linearity, 1992). Nothing where that
// does not happen up to `most`.
std::optional<Run> run_extrapolated(const Task& task, int total, int most, Extrapolation& made) {
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
    std::vector<Run> runs;  // the last ones
    int simulated = 0;
    for (; count <= most; count += period) {
        simulated += count;
        if (!was_straight && simulated > most_of_the_whole * total) return std::nullopt;
        std::optional<Run> next = run(task, count, unneeded);
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

void judge_memory(Evaluation& evaluation) {
    const ClassMemory* tightest = nullptr;
    for (const ClassMemory& memory : evaluation.memory)
        if (!tightest || memory.peak > tightest->peak) tightest = &memory;
    if (!tightest) return;
    evaluation.peak_memory = tightest->peak;
    evaluation.fits = evaluation.peak_memory <= evaluation.available_memory;
    evaluation.tightest =
        fmt::format("pipeline rank {}: {} needed, {} available", tightest->pipeline,
                    core::format(tightest->peak), core::format(evaluation.available_memory));
}

void judge_host_memory(Evaluation& evaluation, const Task& task, core::Bytes offloaded) {
    if (offloaded.value <= 0) return;
    evaluation.host_memory = offloaded;
    if (!is_accelerator(task))
        evaluation.host_memory += evaluation.peak_memory * static_cast<double>(cluster::most_ranks_of_a_node(
                                                               task.cluster, task.plan.layout.ranks()));
    if (task.cluster.instance.host_memory.value > 0)
        evaluation.available_host_memory = task.cluster.instance.host_memory;
    if (!evaluation.available_host_memory) {
        evaluation.assumptions.push_back(
            fmt::format("{} states no host memory: the {} of offloaded activations are taken to fit there",
                        task.cluster.instance.name, core::format(offloaded)));
        return;
    }
    if (evaluation.host_memory <= *evaluation.available_host_memory) return;
    if (evaluation.fits)
        evaluation.tightest =
            fmt::format("the host of the fullest node: {} of offloaded activations{} needed, {} available",
                        core::format(evaluation.host_memory), is_accelerator(task) ? "" : " and ranks",
                        core::format(*evaluation.available_host_memory));
    evaluation.fits = false;
}

// What a named library leaves to NCCL, and where its makers do not offer it.
void add_library_assumptions(std::vector<std::string>& lines, const Task& task) {
    const schedule::Plan& plan = task.plan;
    const Library* library = find_library(plan.communication);
    if (!library || plan.layout.data == 1) return;
    if (library->unsupported && task.cluster.instance.provider == "aws")
        if (const std::optional<core::Unsupported> reason = library->unsupported(task.cluster.instance))
            lines.push_back(fmt::format("communication = {}: {}; it is simulated all the same",
                                        plan.communication, reason->reason));
    std::string left;
    for (const schedule::CollectiveKind kind :
         {schedule::CollectiveKind::reduce_scatter, schedule::CollectiveKind::all_gather})
        if (plan.shards(schedule::Sharding::optimizer) && !library->carries(kind))
            left += fmt::format("{}{}", left.empty() ? "" : " and ", schedule::name_of(kind));
    if (!left.empty())
        lines.push_back(fmt::format("communication = {}: it has no {} for sharded state, which NCCL does",
                                    plan.communication, left));
}

void add_assumptions(Evaluation& evaluation, const Task& task, const Run& result) {
    std::vector<std::string>& lines = evaluation.assumptions;
    const schedule::Plan& plan = task.plan;
    if (result.ranks > result.classes &&
        !(task.costs && !task.cluster.instance.device.has_concurrent_streams &&
          plan.layout.ranks() > task.cluster.device_count()))
        lines.push_back(
            fmt::format("{} ranks are simulated as {} class{}: data- and tensor-parallel replicas do the "
                        "same work at the same time",
                        result.ranks, result.classes, result.classes == 1 ? "" : "es"));
    if (task.costs) {
        lines.insert(lines.end(), task.costs->compute.assumptions().begin(),
                     task.costs->compute.assumptions().end());
        if (result.ranks > 1)
            lines.push_back(
                result.contended_links > 0
                    ? fmt::format("communications that run at the same time share links max-min fairly: {} "
                                  "kind{} of link can be contended by several streams or "
                                  "pipeline coordinates",
                                  result.contended_links, result.contended_links == 1 ? "" : "s")
                    : std::string("no link is shared by communications of different streams or pipeline "
                                  "coordinates"));
        add_library_assumptions(lines, task);
        const cluster::DeviceSpec& device = task.cluster.instance.device;
        if (device.has_concurrent_streams && result.ranks > 1)
            lines.push_back(fmt::format(
                "compute loses {:.0f} % of the time it shares with collectives of the data-parallel group",
                100 * task.options.constants.overlap_loss));
        const int idle = task.cluster.device_count() - plan.layout.ranks();
        if (idle > 0)
            lines.push_back(
                fmt::format("{} of {} devices are idle but paid for", idle, task.cluster.device_count()));
        if (idle < 0)
            lines.push_back(
                fmt::format("{} ranks share {} cores: those that work on one core at the same time get equal "
                            "parts of it, and each rank its part of the memory",
                            plan.layout.ranks(), task.cluster.device_count()));
    }
    // Such orders would differ with the cluster; a plan's is the same wherever it is simulated and run.
    const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(plan.schedule);
    if (found && found->orders_by_times && plan.layout.pipeline > 1)
        lines.push_back(
            fmt::format("{} is ordered for equal stages, a backward twice as long as a forward and no "
                        "transfers, not for this plan's times; schedule = \"auto\" is",
                        found->name));
    lines.insert(lines.end(), task.cluster.assumptions.begin(), task.cluster.assumptions.end());
    // Doubts of the profile, but for the figures of precisions that play no part.
    const std::string precision_key = "device.precision.";
    for (const std::string& note : task.cluster.instance.notes) {
        const std::size_t at = note.find(precision_key);
        if (at != std::string::npos &&
            !note.substr(at + precision_key.size()).starts_with(core::name_of(plan.precision.compute)))
            continue;
        lines.push_back(task.cluster.instance.name + ": " + note);
    }
    lines.insert(lines.end(), task.graph.assumptions.begin(), task.graph.assumptions.end());
}

void add_rates(Evaluation& evaluation, const Task& task, const Run& result) {
    const schedule::Plan& plan = task.plan;
    evaluation.step_time = result.step;
    evaluation.breakdown = result.breakdown;
    evaluation.samples_per_second = plan.global_batch() / result.step.value;
    evaluation.tokens_per_second =
        evaluation.samples_per_second * static_cast<double>(task.graph.tokens_per_sample);
    // Backward needs twice the FLOPs of forward: the gradients of inputs and of weights (Megatron-LM, arXiv
    // 2104.04473, appendix).
    constexpr double forward_alone = 1, forward_and_backward = 3;
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    const double forwards = order && order->is_forward_only ? forward_alone : forward_and_backward;
    const core::Flops model_flops =
        model::forward_flops_per_sample(task.graph) * (forwards * plan.global_batch());
    const double ranks = plan.layout.ranks();
    evaluation.model_flops_per_gpu = model_flops / result.step / ranks;
    evaluation.hardware_flops_per_gpu = (model_flops + result.recompute_flops) / result.step / ranks;
    const auto peak = task.cluster.instance.device.peak.find(plan.precision.compute);
    evaluation.mfu =
        peak == task.cluster.instance.device.peak.end() ? 0 : evaluation.model_flops_per_gpu / peak->second;
}

}  // namespace

namespace {

std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster, CostModels* costs,
                                                      const CostConstants& constants) {
    if (!costs) return schedule::complete_partition(plan, graph);
    return complete_partition(
        plan, graph, cluster, *costs,
        [&](const schedule::Partition& partition) -> std::optional<PartitionTrial> {
            schedule::Plan divided = plan;
            divided.partition = partition;
            core::Diagnostics not_simulated;
            const std::optional<Evaluation> evaluation =
                evaluate(graph, cluster, divided, not_simulated, {.constants = constants, .verifies = false});
            if (!evaluation) return std::nullopt;
            return PartitionTrial{evaluation->step_time, evaluation->peak_memory, evaluation->fits};
        });
}

// Gives a plan without a partition the one that it is simulated with; false when there is none.
bool complete(schedule::Plan& plan, const model::ModelGraph& graph, const cluster::Cluster& cluster,
              CostModels* costs, const CostConstants& constants, core::Diagnostics& diagnostics) {
    std::optional<schedule::Partition> partition = complete_partition(plan, graph, cluster, costs, constants);
    if (partition) plan.partition = std::move(*partition);
    else
        diagnostics.error({}, "plan.pipeline_parallel",
                          fmt::format("{} virtual stages for the {} partition units of {}", plan.stages(),
                                      graph.units.size(), graph.name),
                          "use fewer stages: every stage needs at least one unit");
    return partition.has_value();
}

// What a plan leaves to its framework, and what is assumed by that.
std::vector<std::string> run_as_the_framework_does(schedule::Plan& plan, const FrameworkTraits& traits) {
    if (!keep_gathered(traits, plan)) return {};
    return {
        fmt::format("{} gathers parameters once a step in pipelines: sharding = parameters is simulated as "
                    "that of optimizer state",
                    traits.title)};
}

}  // namespace

std::optional<Evaluation> evaluate(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                   const schedule::Plan& given_plan, core::Diagnostics& diagnostics,
                                   const EvaluateOptions& options) {
    schedule::Plan plan = given_plan;
    const std::size_t errors_before = diagnostics.error_count();
    check_framework(plan.framework, diagnostics);
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    const FrameworkTraits traits = framework_traits(plan.framework, options.constants);
    Evaluation evaluation;
    evaluation.assumptions = run_as_the_framework_does(plan, traits);
    core::Diagnostics unpriced;
    std::optional<CostModels> costs =
        options.memory_only && !plan.partition.first_units.empty()
            ? std::nullopt
            : make_cost_models(graph, cluster, plan, options.memory_only ? unpriced : diagnostics,
                               options.constants, options.shares_links ? nullptr : options.known_candidates);
    if (!costs && !options.memory_only) return std::nullopt;
    if (costs) costs->counts_hosts = options.counts_hosts;
    if (!complete(plan, graph, cluster, costs ? &*costs : nullptr, options.constants, diagnostics))
        return std::nullopt;
    if (options.memory_only) costs.reset();
    const int ranks_on_a_device = (plan.layout.ranks() + cluster.device_count() - 1) / cluster.device_count();
    std::size_t simulated_instructions = 0;
    std::optional<ContentionFinder> finder;
    if (costs) finder.emplace(costs->communication, true);
    const Task task{graph,
                    cluster,
                    plan,
                    options,
                    costs ? &*costs : nullptr,
                    finder ? &*finder : nullptr,
                    costs && traits.blocks_on_transfers,
                    framework_memory(plan.framework, options.constants),
                    cluster.instance.device.memory / ranks_on_a_device,
                    &simulated_instructions};

    std::optional<Run> result;
    Extrapolation extrapolation;
    bool settles_late = false;
    const bool may_extrapolate = options.most_micro_batches && !options.keeps_timeline;
    if (may_extrapolate)
        result =
            run_from_one(task, plan.micro_batches, *options.most_micro_batches, extrapolation, settles_late);
    if (may_extrapolate && !result && !settles_late)
        result = run_extrapolated(task, plan.micro_batches, *options.most_micro_batches, extrapolation);
    if (!result) result = run(task, plan.micro_batches, diagnostics);
    if (!result) return std::nullopt;

    evaluation.simulated_instructions = simulated_instructions;
    evaluation.available_memory = task.available;
    evaluation.memory = result->memory;
    judge_memory(evaluation);
    if (!evaluation.fits) evaluation.out_of_memory = result->out_of_memory;
    judge_host_memory(evaluation, task, result->host_memory);
    evaluation.rate = cluster::price(cluster);
    evaluation.is_extrapolated = extrapolation.from > 0;
    evaluation.settled_at = extrapolation.from;
    evaluation.settles_late = settles_late && !evaluation.is_extrapolated;
    if (evaluation.is_extrapolated) evaluation.assumptions.push_back(extrapolation.how);
    if (!options.step_only) add_assumptions(evaluation, task, *result);
    if (options.memory_only) return evaluation;

    add_rates(evaluation, task, *result);
    if (!options.keeps_timeline) return evaluation;
    evaluation.timeline = std::move(result->timeline);
    evaluation.critical_performer = result->critical_performer;
    evaluation.active_from = std::move(result->active_from);
    evaluation.memory_timeline = std::move(result->memory_timeline);
    evaluation.program = std::move(result->program);
    return evaluation;
}

std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster,
                                                      const CostConstants& constants) {
    if (!plan.partition.first_units.empty()) return plan.partition;
    core::Diagnostics unpriced;
    std::optional<CostModels> costs = make_cost_models(graph, cluster, plan, unpriced, constants);
    return complete_partition(plan, graph, cluster, costs ? &*costs : nullptr, constants);
}

core::Value to_value(const Evaluation& evaluation, const model::ModelGraph& graph,
                     const schedule::Plan& plan) {
    core::Value value = core::Value::table();
    value["model"] = graph.name;
    value["ranks"] = plan.layout.ranks();
    value["global_batch"] = plan.global_batch();
    value["step_time_s"] = evaluation.step_time.value;
    value["samples_per_s"] = evaluation.samples_per_second;
    value["tokens_per_s"] = evaluation.tokens_per_second;
    value["model_tflops_per_gpu"] = core::to_teraflops_per_second(evaluation.model_flops_per_gpu);
    value["hardware_tflops_per_gpu"] = core::to_teraflops_per_second(evaluation.hardware_flops_per_gpu);
    value["mfu"] = evaluation.mfu;
    value["fits"] = evaluation.fits;
    value["peak_memory_gib"] = core::to_gibibytes(evaluation.peak_memory);
    value["available_memory_gib"] = core::to_gibibytes(evaluation.available_memory);
    if (evaluation.host_memory.value > 0) {
        value["host_memory_gib"] = core::to_gibibytes(evaluation.host_memory);
        value["available_host_memory_gib"] =
            evaluation.available_host_memory
                ? core::Value(core::to_gibibytes(*evaluation.available_host_memory))
                : core::Value();
    }
    value["tightest"] = evaluation.tightest;
    core::Value memory = core::Value::array();
    for (std::size_t i = 0; i < evaluation.memory.size(); ++i) {
        const ClassMemory& part = evaluation.memory[i];
        core::Value row = core::Value::table();
        row["rank_class"] = i;
        row["pipeline_rank"] = part.pipeline;
        // The contract's key holds one number: the first virtual stage of the class; all of them are in
        // `stages`.
        row["stage"] = part.stages.empty() ? -1 : part.stages.front();
        row["stages"] = part.stages;
        row["peak_gib"] = core::to_gibibytes(part.peak);
        row["parameters_gib"] = core::to_gibibytes(part.parameters);
        row["gradients_gib"] = core::to_gibibytes(part.gradients);
        row["optimizer_gib"] = core::to_gibibytes(part.optimizer);
        row["activations_gib"] = core::to_gibibytes(part.activations);
        row["workspace_gib"] = core::to_gibibytes(part.workspace);
        row["overhead_gib"] = core::to_gibibytes(part.overhead);
        row["reserved_gib"] = core::to_gibibytes(part.reserved);
        row["process_gib"] = core::to_gibibytes(part.process);
        memory.append(std::move(row));
    }
    value["memory"] = std::move(memory);
    value["out_of_memory"] = evaluation.out_of_memory ? to_value(*evaluation.out_of_memory) : core::Value();
    core::Value breakdown = core::Value::table();
    for (const BreakdownPart& part : breakdown_parts())
        breakdown[part.name] = (evaluation.breakdown.*part.part).value;
    value["breakdown_s"] = std::move(breakdown);
    value["usd_per_hour"] = core::to_dollars_per_hour(evaluation.rate);
    value["usd_per_million_samples"] =
        evaluation.samples_per_second > 0 ? evaluation.rate.value * 1e6 / evaluation.samples_per_second : 0.0;
    value["assumptions"] = evaluation.assumptions;
    return value;
}

}  // namespace sim
