#include "exec/runtime/rank_run.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/checkpoint/checkpoint_writer.h"
#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/checkpoint/training_state.h"
#include "exec/cpu/backend.h"
#include "exec/cpu/cores.h"
#include "exec/cpu/kernels.h"
#include "exec/observation/step_reporter.h"
#include "exec/transport/exchange.h"
#include "model/segment.h"

namespace exec {

using schedule::InstructionKind;

RunPreparation prepare_run(const schedule::Program& program, const model::ModelGraph& graph, bool evaluates) {
    RunPreparation result{schedule::segment_graphs(program, graph), {}, {}, {}};
    std::vector<char> splits(program.stages.size(), 0), trains(program.stages.size(), 0);
    result.activities.resize(program.classes.size());
    for (const std::int32_t c : core::indices(program.classes))
        for (std::uint32_t i = 0; i < program.classes[c].instructions.size(); ++i) {
            const schedule::Instruction& instruction = program.classes[c].instructions[i];
            result.activities[c].push_back(schedule::describe(program, c, i));
            if (instruction.kind != InstructionKind::compute ||
                instruction.phase == schedule::ComputePhase::forward)
                continue;
            trains[instruction.stage] = 1;
            if (instruction.phase == schedule::ComputePhase::backward_input) splits[instruction.stage] = 1;
        }
    for (const std::int32_t s : core::indices(program.stages))
        for (const model::ModelGraph& segment : result.graphs)
            result.stage_plans.push_back(make_stage_plan(segment, program, s, !trains[s], splits[s]));
    if (!evaluates) return result;
    // Later parts of a sequence read what earlier ones save for backward.
    result.evaluation_plans = result.stage_plans;
    if (program.cuts_sequences()) return result;
    for (const std::int32_t s : core::indices(program.stages))
        result.evaluation_plans[s] = make_stage_plan(graph, program, s, true, false);
    return result;
}

namespace {

// The communicator of a process outlives the run and the texts of its instructions, and answers another rank
// that asks what this rank is at.
class EndOfActivity {
public:
    explicit EndOfActivity(Communicator& communicator) : communicator_(communicator) {}
    ~EndOfActivity() { communicator_.set_activity(nullptr); }
    EndOfActivity(const EndOfActivity&) = delete;
    EndOfActivity& operator=(const EndOfActivity&) = delete;

private:
    Communicator& communicator_;
};

double learning_rate_of(const schedule::Program& program, const RunOptions& options, std::int64_t step) {
    return program.plan.optimizer.learning_rate * options.learning_rate.factor(step);
}

// Evaluation between steps.
class HeldOut {
public:
    HeldOut(const model::ModelGraph& graph, const EvaluationOptions& options, Communicator& communicator,
            const RunPreparation& preparation)
        : options_(options),
          communicator_(communicator),
          preparation_(preparation),
          inputs_(graph, options.data) {}

    bool is_due(std::int64_t completed) const {
        return options_.every > 0 && completed % options_.every == 0;
    }
    // 0 on ranks that do not know it.
    double run(std::int64_t completed, RankExecutor& executor, std::vector<Evaluated>& results) {
        const std::optional<double> loss =
            executor.evaluate(inputs_, options_.batches, preparation_.evaluation_plans);
        communicator_.set_activity(nullptr);
        if (loss) results.push_back({completed, *loss});
        return loss.value_or(0.0);
    }

private:
    const EvaluationOptions& options_;
    Communicator& communicator_;
    const RunPreparation& preparation_;
    const InputReader inputs_;
};

// Seconds of a product of 192 x 192 x 192: some 0.2 ms from the second-level cache.
double probe_speed() {
    constexpr std::int64_t n = 192;
    static thread_local std::vector<float> arrays(3 * n * n, 0.5f);
    float *a = arrays.data(), *b = a + n * n, *c = b + n * n;
    // The first one brings the arrays back into the cache: what the step before left there is not the
    // machine's speed.
    Clock::time_point start;
    for (int i = 0; i < 2; ++i) {
        start = Clock::now();
        cpu::kernels().product(false, true, n, n, n, 1, a, n, b, n, c, n, false);
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool leads_folder(const RunOptions& options, int rank) {
    const CheckpointOptions& checkpoints = options.checkpoints;
    return checkpoints.host_folders ? checkpoints.host_folders->leads(rank) : rank == 0;
}

// Before anything is written into it.
void prepare_folder(const RunOptions& options) {
    const CheckpointOptions& checkpoints = options.checkpoints;
    tidy_checkpoints(checkpoints.directory);
    set_aside_damaged(checkpoints.directory, checkpoints.damaged_steps);
    if (checkpoints.sets_aside_later) set_aside_later(checkpoints.directory, options.first_step);
}

}  // namespace

RankRecord run_rank(const schedule::Program& program, const model::ModelGraph& graph,
                    const InputReader& inputs, const RunOptions& options, Communicator& communicator,
                    const RunPreparation& preparation, int core, int cores,
                    const std::function<void(RankExecutor&)>& before_end) {
    RankRecord record;
    const EndOfActivity end_of_activity(communicator);
    const auto rank_class = program.class_of_rank[communicator.rank()];
    const std::vector<std::string>& activities = preparation.activities[rank_class];
    const CheckpointOptions& checkpoints = options.checkpoints;
    // Evaluation changes nothing, and has no optimizer state: what it wrote would take the place of what was
    // trained.
    const bool writes_checkpoints = !checkpoints.directory.empty() && schedule::trains(program);
    std::optional<CheckpointWriter> writer;
    if (writes_checkpoints) writer.emplace(communicator, program, graph, options, inputs.source());
    // Other backends' libraries start threads of their own (NCCL's proxies), which would inherit the one
    // core.
    std::optional<cpu::StayOnCore> stay;
    if (!options.make_backend) stay.emplace(core, cores);
    const std::unique_ptr<Backend> made =
        options.make_backend ? options.make_backend({program, graph, inputs, options, communicator,
                                                     preparation.graphs, preparation.stage_plans, activities})
                             : std::make_unique<cpu::CpuBackend>(program, preparation.graphs, options,
                                                                 communicator, activities);
    Backend& backend = *made;
    RankExecutor executor(program, preparation.graphs, inputs, options, communicator.rank(), backend,
                          preparation.stage_plans);
    try {
        if (options.resumed && options.resumed->manifest().loss_scaling)
            backend.continue_with(*options.resumed->manifest().loss_scaling);
        if (options.resumed)
            restore(*options.resumed, program, graph, communicator.rank(), executor.buckets());
        else if (options.initial)
            begin_with(*options.initial, program, graph, communicator.rank(), executor.buckets());
        if (writes_checkpoints && leads_folder(options, communicator.rank())) prepare_folder(options);
        std::optional<StepReporter> reporter;
        if (options.is_observed) reporter.emplace(program, options, communicator);
        const auto save = [&](std::int64_t completed) {
            static const std::string activity = "writing a checkpoint";
            communicator.set_activity(&activity);
            writer->save(completed, executor.buckets(), record.losses, backend.loss_scaling());
            if (reporter) reporter->tell_checkpoint(writer->committed());
        };
        std::optional<HeldOut> evaluation;
        if (options.evaluation.data) evaluation.emplace(graph, options.evaluation, communicator, preparation);
        std::int64_t completed = options.first_step;
        std::optional<std::int64_t> saved;
        if (options.resumed) saved = completed;
        for (int step = 0; step < options.steps; ++step) {
            const double probe = options.probes_speed ? probe_speed() : 0;
            const std::optional<int> signal = options.termination ? options.termination() : std::nullopt;
            // One rank's signal is every rank's: all learn of it at the same step.
            record.interruption = barrier(communicator, step, signal.value_or(0));
            if (record.interruption != 0) {
                if (writes_checkpoints && saved != completed) save(completed);
                break;
            }
            if (writer) writer->commit_if_written();
            if (reporter && writer) reporter->tell_checkpoint(writer->committed());
            if (options.probes_speed) record.probes.push_back(probe);
            record.begins.push_back(Clock::now());
            if (step + 1 == options.steps) executor.memory().start_samples(record.begins.back());
            record.steps.emplace_back().reserve(activities.size());
            const core::Seconds computing = backend.computing(), on_core = backend.on_core();
            executor.step(options.first_step + step, record.steps.back());
            record.step_computing.push_back((backend.computing() - computing).value);
            record.step_on_core.push_back((backend.on_core() - on_core).value);
            const Clock::time_point end = Clock::now();
            if (executor.loss()) record.losses.push_back(*executor.loss());
            ++completed;
            StepReport report{
                completed,
                0,
                learning_rate_of(program, options, completed - 1),
                backend.gradient_norm(),
                backend.loss_scaling(),
                core::Seconds(std::chrono::duration<double>(end - record.begins.back()).count()),
                {}};
            if (evaluation && (step + 1 == options.steps || evaluation->is_due(completed)))
                report.held_out_loss = evaluation->run(completed, executor, record.evaluations);
            if (reporter) reporter->tell(report, executor.loss());
            if (writes_checkpoints && (step + 1 == options.steps ||
                                       (checkpoints.every > 0 && completed % checkpoints.every == 0))) {
                save(completed);
                saved = completed;
            }
        }
        if (options.steps == 0 && writes_checkpoints && saved != completed) {
            barrier(communicator, 1);  // rank 0 has made the folder
            save(completed);
        }
        if (writer) writer->commit();
        if (reporter && writer) reporter->tell_checkpoint(writer->committed());
        barrier(communicator, options.steps);
    } catch (const std::exception& failure) {
        // While the arrays that others may be reading are still there.
        communicator.give_up(fmt::format("rank {}: {}", communicator.rank(), failure.what()));
        backend.settle();
        throw;
    }
    record.samples = executor.memory().stop_samples();
    record.computing = backend.computing().value;
    record.on_core = backend.on_core().value;
    record.operator_samples = std::move(backend.operator_samples());
    record.kernel_choices = backend.kernel_choices();
    record.peak = executor.memory().peak();
    record.at_peak = executor.memory().at_peak();
    record.peak += backend.overhead();
    record.at_peak[core::position_of(schedule::MemoryKind::overhead)] += backend.overhead();
    if (before_end) before_end(executor);
    return record;
}

namespace {

schedule::Timeline timeline_of(const schedule::Program& program, const std::vector<RankRecord>& records,
                               std::size_t step) {
    schedule::Timeline timeline;
    Clock::time_point origin = records[0].begins[step];
    for (const RankRecord& record : records) origin = std::min(origin, record.begins[step]);
    const auto since = [&](Clock::time_point t) {
        return core::Seconds(std::chrono::duration<double>(t - origin).count());
    };
    for (const std::int32_t rank : core::indices(records)) {
        timeline.class_of.push_back(program.class_of_rank[rank]);
        timeline.rank.push_back(rank);
        std::vector<schedule::Span>& spans = timeline.spans.emplace_back();
        for (const InstructionTime& time : records[rank].steps[step])
            spans.push_back({time.instruction, since(time.start), since(time.end)});
        if (!spans.empty()) timeline.makespan = std::max(timeline.makespan, spans.back().end);
    }
    return timeline;
}

}  // namespace

RunResult assemble(const schedule::Program& program, std::vector<RankRecord> records) {
    RunResult result;
    result.instruction_set = std::string(cpu::kernels().instruction_set);
    result.kernel_choices = records[0].kernel_choices;
    if (records[0].interruption != 0)
        result.interruption = {records[0].interruption, core::count_of(records[0].steps)};
    for (std::size_t step = 0; step < records[0].steps.size(); ++step) {
        result.timelines.push_back(timeline_of(program, records, step));
        result.step_times.push_back(result.timelines.back().makespan);
    }
    // Without a loss collective there is one data-parallel replica; its tensor-parallel ranks know the same
    // loss.
    for (const RankRecord& record : records) {
        if (result.losses.empty()) result.losses = record.losses;
        if (result.evaluations.empty()) result.evaluations = record.evaluations;
    }
    for (std::size_t step = 0; step < records[0].steps.size(); ++step) {
        StepConditions& conditions = result.conditions.emplace_back();
        double computing = 0, on_core = 0, probe = 0;
        std::vector<std::vector<core::Seconds>>& ranks = result.on_core.emplace_back();
        for (const RankRecord& record : records) {
            computing += record.step_computing[step];
            on_core += record.step_on_core[step];
            if (!record.probes.empty()) probe += record.probes[step] / records.size();
            std::vector<core::Seconds>& spans = ranks.emplace_back();
            for (const InstructionTime& time : record.steps[step]) spans.push_back(time.on_core);
        }
        conditions.probe = core::Seconds(probe);
        if (computing > 0) conditions.lost_share = std::max(0.0, 1 - on_core / computing);
    }
    double computing = 0, on_core = 0;
    for (const RankRecord& record : records) {
        computing += record.computing;
        on_core += record.on_core;
    }
    if (computing > 0) result.lost_share = std::max(0.0, 1 - on_core / computing);
    std::vector<double> probes;
    for (const RankRecord& record : records)
        probes.insert(probes.end(), record.probes.begin(), record.probes.end());
    if (!probes.empty()) {
        std::nth_element(probes.begin(), probes.begin() + (probes.size() / 2), probes.end());
        result.probe = core::Seconds(probes[probes.size() / 2]);
    }
    for (RankRecord& record : records) {
        result.operator_samples.insert(result.operator_samples.end(), record.operator_samples.begin(),
                                       record.operator_samples.end());
        result.memory.samples.push_back(std::move(record.samples));
        result.memory.peak.push_back(record.peak);
        result.memory.at_peak.push_back(record.at_peak);
    }
    return result;
}

}  // namespace exec
