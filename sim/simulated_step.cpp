#include "sim/simulated_step.h"

#include <algorithm>
#include <utility>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/pass/lower.h"
#include "schedule/verify.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/cost/host_memory.h"
#include "sim/engine/overlapped_compute.h"
#include "sim/engine/shared_cores.h"
#include "sim/engine/simulate.h"
#include "sim/report/breakdown.h"
#include "sim/report/memory_report.h"
#include "sim/report/overflow_place.h"

namespace sim {

struct SimulatedProgram {
    PricedProgram priced;  // as each instruction takes alone
    std::vector<Communication> communications;
    double overlap_loss = 0;
    FrameworkMemory framework;
    StepRun run;
};

LoweredPrograms* kept_runs(const StepTask& task) {
    LoweredPrograms* const lowered = task.options.lowered;
    return lowered && lowered->keeps_runs ? lowered : nullptr;
}

bool is_accelerator(const StepTask& task) { return task.cluster.instance.device.has_concurrent_streams; }

namespace {

ClassMemory class_memory(const StepTask& task, const schedule::Program& program, int class_index,
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

OutOfMemory describe_overflow(const StepTask& task, const schedule::Program& program,
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
std::optional<OutOfMemory> find_overflow(const StepTask& task, const schedule::Program& program,
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
OverlapLosses slow_overlapped(const StepTask& task, const schedule::Program& program, Simulator& simulator,
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
std::vector<ClassMemory> class_memories(const StepTask& task, const schedule::Program& program,
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

// Verification, timelines and breakdowns are of single instructions.
bool joins_passes(const StepTask& task) {
    return (task.options.step_only || !task.options.breaks_down) && !task.options.verifies &&
           !task.options.keeps_timeline && task.costs && task.options.is_folded && is_accelerator(task);
}

LoweredPrograms::Entry* find_lowered(LoweredPrograms& known, const StepTask& task, int micro_batches) {
    for (LoweredPrograms::Entry& entry : known.entries)
        if (entry.micro_batches == micro_batches && entry.partition == task.plan.partition &&
            entry.is_joined == joins_passes(task))
            return &entry;
    return nullptr;
}

// Null where the plan's schedule cannot have so many micro-batches.
std::shared_ptr<const schedule::Program> lowered_program(const StepTask& task, int micro_batches,
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
                         .repetition = task.options.repetition,
                         .graphs = &task.graphs,
                         .joins_passes = joins_passes(task)}));
    if (known)
        known->entries.push_back(
            {micro_batches, task.plan.partition, joins_passes(task), program, {}, {}, {}, {}});
    return program;
}

// The same whatever the times are, so kept with the Program.
std::vector<ExtraMemory> memory_beside(const StepTask& task, int micro_batches,
                                       const schedule::Program& program) {
    if (!task.options.lowered)
        return extra_memory(program, task.graph, task.graphs, task.framework, task.options.repetition);
    LoweredPrograms::Entry& entry = *find_lowered(*task.options.lowered, task, micro_batches);
    if (entry.framework != task.framework) {
        entry.extra = extra_memory(program, task.graph, task.graphs, task.framework, task.options.repetition);
        entry.framework = task.framework;
    }
    return entry.extra;
}

// Kept with the Program too.
std::shared_ptr<Simulator> kept_simulator(const StepTask& task, int micro_batches,
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
const StepRun* known_run(const StepTask& task, int micro_batches, const PricedProgram& priced,
                         const Contention& contention) {
    LoweredPrograms* const kept = kept_runs(task);
    if (!kept) return nullptr;
    const SimulatedProgram* known = find_lowered(*kept, task, micro_batches)->simulated.get();
    const bool is_known =
        known && known->priced.durations == priced.durations && known->priced.host == priced.host &&
        known->framework == task.framework && known->overlap_loss == task.options.constants.overlap_loss &&
        std::equal(known->communications.begin(), known->communications.end(),
                   contention.communications.begin(), contention.communications.end(), is_same);
    return is_known ? &known->run : nullptr;
}

// The first one: the constants that others are compared with.
void remember_run(const StepTask& task, int micro_batches, PricedProgram priced, const Contention& contention,
                  const StepRun& result) {
    LoweredPrograms* const kept = kept_runs(task);
    if (!kept) return;
    LoweredPrograms::Entry& entry = *find_lowered(*kept, task, micro_batches);
    if (entry.simulated) return;
    entry.simulated = std::make_shared<const SimulatedProgram>(
        SimulatedProgram{std::move(priced), contention.communications, task.options.constants.overlap_loss,
                         task.framework, result});
}

}  // namespace

std::optional<StepRun> run_step(const StepTask& task, int micro_batches, core::Diagnostics& diagnostics,
                                std::optional<int> block) {
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
        if (const StepRun* known = known_run(task, micro_batches, priced, contention)) return *known;
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

    StepRun result;
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
    const bool breaks_down = task.options.breaks_down && !task.options.step_only;
    if (breaks_down)
        result.breakdown = break_down(program, simulation, priced.host, result.critical_performer,
                                      simulate_options.has_concurrent_streams, losses);
    if (block)
        result.steady = find_steady_state(program, simulation.timeline, *block, result.critical_performer);
    if (result.steady && breaks_down)
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

}  // namespace sim
