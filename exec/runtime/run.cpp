#include "exec/runtime/run.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/cpu/cores.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/runtime/parameters.h"
#include "exec/runtime/rank_run.h"
#include "exec/runtime/rank_threads.h"

namespace exec {

namespace {

// Whole parameters and gradients put together from what each rank owns; copies must agree.
class StateCollector {
public:
    StateCollector(const model::ModelGraph& graph, RunResult& result)
        : graph_(graph), result_(result), is_filled_(graph.parameters.size()) {
        result_.gradients.resize(graph.parameters.size());
        result_.parameters.resize(graph.parameters.size());
        for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
            const std::int64_t count = model::element_count(graph.parameters[i].shape);
            result_.gradients[i].resize(count);
            result_.parameters[i].resize(count);
            is_filled_[i].resize(count);
        }
    }

    void add(BucketState& bucket, const ParameterShare& share) {
        const std::lock_guard lock(mutex_);
        for (const BucketState::Owned& own : bucket.owned()) {
            const std::int32_t p = own.parameter.index;
            for (const ElementRun& run : element_runs(graph_.parameter(own.parameter), share)) {
                const std::int64_t begin = std::max(run.local, own.first);
                const std::int64_t end = std::min(run.local + run.count, own.first + std::ssize(own.values));
                for (std::int64_t i = begin; i < end; ++i) {
                    const std::int64_t at = run.global + i - run.local, from = i - own.first;
                    const float value = own.values[from], gradient = own.gradients[from];
                    if (is_filled_[p][at]) {
                        constexpr double least_scale = 1e-6;  // smaller parameters differ by rounding alone
                        const double scale =
                            std::max(least_scale, std::abs(static_cast<double>(result_.parameters[p][at])));
                        result_.largest_copy_difference = std::max(
                            result_.largest_copy_difference,
                            std::abs(static_cast<double>(value) - result_.parameters[p][at]) / scale);
                    }
                    result_.parameters[p][at] = value;
                    result_.gradients[p][at] = gradient;
                    is_filled_[p][at] = 1;
                }
            }
        }
    }

private:
    const model::ModelGraph& graph_;
    RunResult& result_;
    std::vector<std::vector<char>> is_filled_;
    std::mutex mutex_;
};

}  // namespace

RunResult run(const schedule::Program& program, const model::ModelGraph& graph,
              std::shared_ptr<const DataSource> data, const RunOptions& options) {
    const int ranks = program.plan.layout.ranks();
    const InputReader inputs(graph, std::move(data));
    const RunPreparation preparation = prepare_run(program, graph, options.evaluation.data != nullptr);

    RunResult state;
    std::optional<StateCollector> collector;
    if (options.keeps_state) collector.emplace(graph, state);
    cpu::ThreadNetwork network(ranks, options.time_limit, ranks <= cpu::available_cores());
    std::vector<RankRecord> records(ranks);
    struct Failure {
        std::exception_ptr exception;
        bool was_stopped = false;
    };
    std::vector<Failure> failures(ranks);

    const auto work = [&](int rank) {
        Failure& failure = failures[rank];
        const std::unique_ptr<Communicator> communicator = network.communicator(rank);
        try {
            records[rank] = run_rank(program, graph, inputs, options, *communicator, preparation, rank, ranks,
                                     [&](RankExecutor& executor) {
                                         if (!collector) return;
                                         for (BucketState& bucket : executor.buckets())
                                             collector->add(bucket, executor.share());
                                     });
        } catch (const Stopped&) {
            failure = {std::current_exception(), true};
        } catch (const std::exception& exception) {
            failure = {std::current_exception(), false};
            network.stop(fmt::format("rank {}: {}", rank, exception.what()));
        }
        cpu::free_scratch();
    };
    run_in_threads(ranks, work, [&](const std::string& reason) { network.stop(reason); });
    for (const bool was_stopped : {false, true})  // the cause before those it stopped
        for (const Failure& failure : failures)
            if (failure.exception && failure.was_stopped == was_stopped)
                std::rethrow_exception(failure.exception);

    RunResult result = assemble(program, std::move(records));
    result.gradients = std::move(state.gradients);
    result.parameters = std::move(state.parameters);
    result.largest_copy_difference = state.largest_copy_difference;
    return result;
}

std::vector<std::size_t> measured_steps(const RunResult& result, int warm_up_steps, bool has_core_each) {
    constexpr double undisturbed = 0.02;
    std::vector<std::size_t> all, whole;
    for (std::size_t i =
             std::min(static_cast<std::size_t>(std::max(0, warm_up_steps)), result.step_times.size() - 1);
         i < result.step_times.size(); ++i) {
        all.push_back(i);
        if (has_core_each && result.conditions[i].lost_share <= undisturbed) whole.push_back(i);
    }
    return whole.size() >= 3 && 4 * whole.size() >= all.size() ? whole : all;
}

StepTimes summarize(const RunResult& result, const std::vector<std::size_t>& steps, int warm_up_steps) {
    std::vector<core::Seconds> times;
    double lost = 0;
    for (const std::size_t step : steps) {
        times.push_back(result.step_times[step]);
        lost += result.conditions[step].lost_share;
    }
    std::sort(times.begin(), times.end());
    const auto at = [&](double quantile) {
        const double position = quantile * (times.size() - 1);
        const auto low = static_cast<std::size_t>(position);
        const std::size_t high = std::min(low + 1, times.size() - 1);
        return times[low] + (times[high] - times[low]) * (position - low);
    };
    const auto measured = core::count_of(steps);
    return {at(0.5),
            times.front(),
            at(0.95),
            measured,
            std::max(0, core::count_of(result.step_times) - warm_up_steps - measured),
            lost / measured,
            at(0.1),
            at(0.9)};
}

const schedule::Timeline& nearest_timeline(const RunResult& result, const std::vector<std::size_t>& steps,
                                           core::Seconds median) {
    return result.timelines[*std::min_element(steps.begin(), steps.end(), [&](std::size_t a, std::size_t b) {
        return std::abs((result.step_times[a] - median).value) <
               std::abs((result.step_times[b] - median).value);
    })];
}

}  // namespace exec
