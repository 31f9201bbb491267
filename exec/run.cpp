#include "exec/run.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/core.h>

#include "exec/cpu/cores.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/parameters.h"
#include "exec/rank_executor.h"

namespace exec {

namespace {

using schedule::InstructionKind;

// All ranks pass together: messages of one float to and from rank 0.
void barrier(Communicator& communicator, std::uint64_t number) {
    constexpr Tag tag = Tag(1) << 62;
    float token = 0;
    const auto message = [&](int peer) { communicator.finish(communicator.start_send(peer, tag + number, {&token, 1}, nullptr)); };
    const auto await = [&](int peer) {
        float got = 0;
        communicator.receive(peer, tag + number, {&got, 1}, Arrival::overwrites);
    };
    if (communicator.rank() == 0) {
        for (int peer = 1; peer < communicator.size(); ++peer) await(peer);
        for (int peer = 1; peer < communicator.size(); ++peer) message(peer);
    } else {
        message(0);
        await(0);
    }
}

// Whole parameters and gradients put together from what each rank owns; copies must agree.
class StateCollector {
public:
    StateCollector(const model::ModelGraph& graph, RunResult& result) : graph_(graph), result_(result), is_filled_(graph.parameters.size()) {
        result_.gradients.resize(graph.parameters.size());
        result_.parameters.resize(graph.parameters.size());
        for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
            const auto count = static_cast<std::size_t>(model::element_count(graph.parameters[i].shape));
            result_.gradients[i].resize(count);
            result_.parameters[i].resize(count);
            is_filled_[i].resize(count);
        }
    }

    void add(BucketState& bucket, int tensor_degree, int tensor_rank) {
        const std::lock_guard lock(mutex_);
        bucket.for_each_owned([&](model::ParameterId id, std::int64_t first, const float* values, const float* gradients, std::int64_t count, std::size_t) {
            const auto p = static_cast<std::size_t>(id.index);
            for (const ElementRun& run : element_runs(graph_.parameter(id), tensor_degree, tensor_rank)) {
                const std::int64_t begin = std::max(run.local, first), end = std::min(run.local + run.count, first + count);
                for (std::int64_t i = begin; i < end; ++i) {
                    const auto at = static_cast<std::size_t>(run.global + i - run.local);
                    const float value = values[i - first], gradient = gradients[i - first];
                    if (is_filled_[p][at]) {
                        const double scale = std::max(1e-6, std::abs(static_cast<double>(result_.parameters[p][at])));
                        result_.largest_copy_difference = std::max(
                            result_.largest_copy_difference, std::abs(static_cast<double>(value) - static_cast<double>(result_.parameters[p][at])) / scale);
                    }
                    result_.parameters[p][at] = value;
                    result_.gradients[p][at] = gradient;
                    is_filled_[p][at] = 1;
                }
            }
        });
    }

private:
    const model::ModelGraph& graph_;
    RunResult& result_;
    std::vector<std::vector<char>> is_filled_;
    std::mutex mutex_;
};

struct RankRecord {
    std::vector<Clock::time_point> begins;
    std::vector<std::vector<InstructionTime>> steps;
    std::vector<double> losses;
    std::vector<schedule::MemorySample> samples;
    core::Bytes peak;
    std::array<core::Bytes, schedule::memory_kind_count> at_peak;
    std::vector<OperatorSample> operator_samples;
    double computing = 0, on_core = 0;
    std::exception_ptr failure;
    bool was_stopped = false;
};

schedule::Timeline timeline_of(const schedule::Program& program, const std::vector<RankRecord>& records, std::size_t step) {
    schedule::Timeline timeline;
    Clock::time_point origin = records[0].begins[step];
    for (const RankRecord& record : records) origin = std::min(origin, record.begins[step]);
    const auto since = [&](Clock::time_point t) { return core::Seconds(std::chrono::duration<double>(t - origin).count()); };
    for (std::size_t rank = 0; rank < records.size(); ++rank) {
        timeline.class_of.push_back(program.class_of_rank[rank]);
        timeline.rank.push_back(static_cast<std::int32_t>(rank));
        std::vector<schedule::Span>& spans = timeline.spans.emplace_back();
        for (const InstructionTime& time : records[rank].steps[step]) spans.push_back({time.instruction, since(time.start), since(time.end)});
        if (!spans.empty()) timeline.makespan = std::max(timeline.makespan, spans.back().end);
    }
    return timeline;
}

}  // namespace

RunResult run(const schedule::Program& program, const model::ModelGraph& graph, std::shared_ptr<const DataSource> data, const RunOptions& options) {
    const int ranks = program.plan.layout.ranks();
    const InputReader inputs(graph, std::move(data));

    std::vector<StagePlan> stage_plans;
    std::vector<char> splits(program.stages.size(), 0), trains(program.stages.size(), 0);
    std::vector<std::vector<std::string>> activities(program.classes.size());
    for (std::size_t c = 0; c < program.classes.size(); ++c)
        for (std::uint32_t i = 0; i < program.classes[c].instructions.size(); ++i) {
            const schedule::Instruction& instruction = program.classes[c].instructions[i];
            activities[c].push_back(schedule::describe(program, static_cast<int>(c), i));
            if (instruction.kind != InstructionKind::compute || instruction.phase == schedule::ComputePhase::forward) continue;
            trains[static_cast<std::size_t>(instruction.stage)] = 1;
            if (instruction.phase == schedule::ComputePhase::backward_input) splits[static_cast<std::size_t>(instruction.stage)] = 1;
        }
    for (std::size_t s = 0; s < program.stages.size(); ++s)
        stage_plans.push_back(make_stage_plan(graph, program, static_cast<std::int32_t>(s), !trains[s], splits[s]));

    RunResult result;
    result.instruction_set = std::string(cpu::kernels().instruction_set);
    std::optional<StateCollector> collector;
    if (options.keeps_state) collector.emplace(graph, result);
    cpu::ThreadNetwork network(ranks, options.time_limit, ranks <= cpu::available_cores());
    std::vector<RankRecord> records(static_cast<std::size_t>(ranks));

    const auto work = [&](int rank) {
        RankRecord& record = records[static_cast<std::size_t>(rank)];
        const std::vector<std::string>& own_activities = activities[static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(rank)])];
        const std::unique_ptr<Communicator> communicator = network.communicator(rank);
        const std::string* activity = nullptr;
        try {
            cpu::stay_on_core(rank, ranks);
            RankExecutor executor(program, graph, inputs, options, *communicator, stage_plans, own_activities);
            for (int step = 0; step < options.steps; ++step) {
                barrier(*communicator, static_cast<std::uint64_t>(step));
                record.begins.push_back(Clock::now());
                if (step + 1 == options.steps) executor.memory().start_samples(record.begins.back());
                record.steps.emplace_back().reserve(own_activities.size());
                executor.step(step, record.steps.back());
                if (executor.loss()) record.losses.push_back(*executor.loss());
            }
            barrier(*communicator, static_cast<std::uint64_t>(options.steps));
            record.samples = executor.memory().stop_samples();
            record.computing = executor.computing().value;
            record.on_core = executor.on_core().value;
            record.operator_samples = std::move(executor.operator_samples());
            record.peak = executor.memory().peak();
            record.at_peak = executor.memory().at_peak();
            if (collector)
                for (BucketState& bucket : executor.buckets()) collector->add(bucket, program.plan.layout.tensor, executor.tensor_rank());
        } catch (const Stopped&) {
            record.failure = std::current_exception();
            record.was_stopped = true;
        } catch (const std::exception& failure) {
            record.failure = std::current_exception();
            network.stop(fmt::format("rank {}: {}", rank, failure.what()));
        }
        communicator->set_activity(activity);
        cpu::free_scratch();
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
    for (const bool was_stopped : {false, true})  // the cause before those it stopped
        for (const RankRecord& record : records)
            if (record.failure && record.was_stopped == was_stopped) std::rethrow_exception(record.failure);

    for (std::size_t step = 0; step < static_cast<std::size_t>(options.steps); ++step) {
        result.timelines.push_back(timeline_of(program, records, step));
        result.step_times.push_back(result.timelines.back().makespan);
    }
    // Without a loss collective there is one data-parallel replica; its tensor-parallel ranks know the same loss.
    for (int rank = 0; rank < ranks && result.losses.empty(); ++rank) result.losses = records[static_cast<std::size_t>(rank)].losses;
    double computing = 0, on_core = 0;
    for (const RankRecord& record : records) {
        computing += record.computing;
        on_core += record.on_core;
    }
    if (computing > 0) result.lost_share = std::max(0.0, 1 - on_core / computing);
    for (RankRecord& record : records) {
        result.operator_samples.insert(result.operator_samples.end(), record.operator_samples.begin(), record.operator_samples.end());
        result.memory.samples.push_back(std::move(record.samples));
        result.memory.peak.push_back(record.peak);
        result.memory.at_peak.push_back(record.at_peak);
    }
    return result;
}

StepTimes summarize(const RunResult& result, int warm_up_steps) {
    std::vector<core::Seconds> times(
        result.step_times.begin() + std::min<std::ptrdiff_t>(warm_up_steps, static_cast<std::ptrdiff_t>(result.step_times.size()) - 1),
        result.step_times.end());
    std::sort(times.begin(), times.end());
    const auto at = [&](double quantile) {
        const double position = quantile * static_cast<double>(times.size() - 1);
        const auto low = static_cast<std::size_t>(position);
        const std::size_t high = std::min(low + 1, times.size() - 1);
        return times[low] + (times[high] - times[low]) * (position - static_cast<double>(low));
    };
    return {at(0.5), times.front(), at(0.95)};
}

const schedule::Timeline& median_timeline(const RunResult& result, int warm_up_steps) {
    const core::Seconds median = summarize(result, warm_up_steps).median;
    std::size_t best = result.timelines.size() - 1;
    for (std::size_t i = static_cast<std::size_t>(std::max(0, warm_up_steps)); i < result.timelines.size(); ++i)
        if (std::abs((result.step_times[i] - median).value) < std::abs((result.step_times[best] - median).value)) best = i;
    return result.timelines[best];
}

}  // namespace exec
