#include "exec/profile.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include <fmt/core.h>

#include "exec/collective.h"
#include "exec/cpu/cores.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/rank_executor.h"
#include "exec/run.h"
#include "model/signature.h"
#include "schedule/lower.h"
#include "schedule/partition.h"

namespace exec {

namespace {

double seconds_of(const std::function<void()>& work) {
    const Clock::time_point start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

int cores() { return cpu::available_cores(); }

// Every worker repeats its work while all others do theirs; the median of all.
double median_with_all_busy(int workers, int repetitions, const std::function<std::function<void()>(int worker)>& make_work) {
    std::vector<std::vector<double>> times(static_cast<std::size_t>(workers));
    std::barrier all(workers);
    std::vector<std::thread> threads;
    for (int w = 0; w < workers; ++w)
        threads.emplace_back([&, w] {
            cpu::stay_on_core(w, workers);
            const std::function<void()> work = make_work(w);
            work();
            for (int i = 0; i < repetitions; ++i) {
                all.arrive_and_wait();
                times[static_cast<std::size_t>(w)].push_back(seconds_of(work));
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::vector<double> together;
    for (const auto& own : times) together.insert(together.end(), own.begin(), own.end());
    return median(together);
}

// y = x w^T, the shape of a linear layer, n x n x n.
core::FlopsPerSecond product_rate(int workers, std::int64_t n, int repetitions) {
    const cpu::Kernels& k = cpu::kernels();
    const double time = median_with_all_busy(workers, repetitions, [&](int) {
        const auto count = static_cast<std::size_t>(n * n);
        auto a = std::make_shared<std::vector<float>>(count, 0.5f), b = std::make_shared<std::vector<float>>(count, 0.25f),
             c = std::make_shared<std::vector<float>>(count);
        return [=, &k] { k.product(false, true, n, n, n, 1, a->data(), n, b->data(), n, c->data(), n, false); };
    });
    return core::FlopsPerSecond(2.0 * static_cast<double>(n * n * n) / time);
}

struct Exchange {
    core::BytesPerSecond bandwidth;
    core::Seconds latency;
};

// Two ranks perform ring all-reduces, small and large: t = 2 (latency + bytes / 2 / bandwidth).
Exchange measure_exchange(std::size_t large_floats) {
    if (cores() < 2) return {core::gigabytes_per_second(4), core::microseconds(20)};
    const schedule::Rounds rounds = schedule::find_collective_algorithm("ring")->rounds(schedule::CollectiveKind::all_reduce, 2, 2);
    const auto time_of = [&](std::size_t floats, int repetitions) {
        cpu::ThreadNetwork network(2, core::seconds(60), true);
        std::vector<double> times;
        const auto rank_work = [&](int rank) {
            cpu::stay_on_core(rank, 2);
            const std::unique_ptr<Communicator> communicator = network.communicator(rank);
            std::vector<float> data(floats, 1.0f);
            for (int i = 0; i < repetitions + 2; ++i) {
                std::fill(data.begin(), data.end(), 1.0f);  // as fresh in its own cache as a gradient just computed
                float token = 0;
                exec::perform(*communicator, rounds, {0, 1}, {&token, 1}, 100);
                const double taken = seconds_of([&] { exec::perform(*communicator, rounds, {0, 1}, data, 200); });
                if (rank == 0 && i >= 2) times.push_back(taken);
            }
        };
        std::thread one(rank_work, 0), other(rank_work, 1);
        one.join();
        other.join();
        // A disturbed exchange waits for two threads: the lower quartile is what exchange takes, the rest is waiting.
        return quantile(times, 0.25);
    };
    const double small = time_of(2, 200), large = time_of(large_floats, 15);
    const double bytes = static_cast<double>(large_floats) * 4;
    return {core::BytesPerSecond(bytes / std::max(1e-9, large - small)), core::Seconds(small / 2)};
}

schedule::Plan profiled_plan(const schedule::Plan& plan) {
    schedule::Plan result = plan;
    result.layout.pipeline = 1;
    result.layout.data = std::max(1, std::min(plan.layout.ranks(), cores()) / plan.layout.tensor);
    result.virtual_stages = 1;
    result.schedule = "1f1b";
    result.micro_batches = 2;  // the second one adds to gradients that are there
    result.partition = {};
    result.sharding = schedule::Sharding::none;
    result.shard_degree = 0;
    result.recompute = schedule::Recompute::none;
    return result;
}

}  // namespace

PlanProfile profile_plan(const schedule::Plan& plan, const model::ModelGraph& graph, std::shared_ptr<const DataSource> data) {
    schedule::Plan single = profiled_plan(plan);
    core::Diagnostics diagnostics;
    const std::optional<schedule::Partition> partition = schedule::complete_partition(single, graph);
    core::require(partition.has_value(), "one stage always has a partition");
    single.partition = *partition;
    const std::optional<schedule::Schedule> order = schedule::make_schedule(single, diagnostics);
    core::require(order.has_value(), "one stage always has a schedule");
    const schedule::Program program = schedule::lower(single, graph, *order);

    RunOptions options;
    options.times_operators = true;
    options.probes_speed = true;
    options.steps = 2;
    // Enough steps that a median means something, in about a second and a half.
    const double first = run(program, graph, data, options).step_times.back().value;
    options.steps = std::clamp(static_cast<int>(1.5 / std::max(1e-4, first)), 6, 60);
    const RunResult result = run(program, graph, data, options);

    std::map<std::pair<std::int32_t, int>, std::vector<double>> by_operator;
    std::map<std::int32_t, std::map<std::int32_t, double>> by_step;  // [step][rank]: all operators
    for (const OperatorSample& sample : result.operator_samples) {
        if (sample.step == 0) continue;
        // What other processes took is not the operator's.
        by_operator[{sample.op, static_cast<int>(sample.phase)}].push_back(sample.on_core.value);
        by_step[sample.step][sample.rank] += sample.on_core.value;
    }
    // Medians of short operators leave out what interrupts a rank's own work (the system, page faults); a step is as slow as its slowest rank, that included.
    // So the medians tell how a step divides among operators, and the median step how long all of them take.
    double sum_of_medians = 0;
    for (auto& [key, times] : by_operator) sum_of_medians += single.micro_batches * median(times);
    std::vector<double> slowest;
    for (const auto& [step, ranks] : by_step) {
        double most = 0;
        for (const auto& [rank, time] : ranks) most = std::max(most, time);
        slowest.push_back(most);
    }
    const double interruptions = sum_of_medians > 0 ? std::max(1.0, median(slowest) / sum_of_medians) : 1.0;

    // Operators of one signature are one entry: the mean of theirs.
    struct Sum {
        double time[3] = {0, 0, 0};
        int count = 0;
    };
    std::map<std::string, Sum> by_signature;
    const model::CostContext context = single.cost_context();
    for (std::int32_t op = 0; op < static_cast<std::int32_t>(graph.operators.size()); ++op) {
        Sum& sum = by_signature[model::signature(graph, model::OperatorId(op), context)];
        ++sum.count;
        for (int phase = 0; phase < 3; ++phase)
            if (const auto found = by_operator.find({op, phase}); found != by_operator.end()) sum.time[phase] += interruptions * median(found->second);
    }
    PlanProfile profile;
    profile.probe = result.probe;
    for (const auto& [signature, sum] : by_signature)
        profile.operators.push_back(
            {signature, core::Seconds(sum.time[0] / sum.count), core::Seconds(sum.time[1] / sum.count), core::Seconds(sum.time[2] / sum.count)});

    // The update: bytes as the simulator counts them.
    const double bytes_an_element = 4 + 2 * schedule::state_bytes_per_parameter(plan.optimizer).value + 8;
    std::vector<double> updates;
    double elements = 0, largest = 0;
    const schedule::RankProgram& list = program.classes[0];
    for (const schedule::ParameterBucket& bucket : list.buckets) {
        elements += static_cast<double>(bucket.elements);
        largest = std::max(largest, static_cast<double>(bucket.elements));
    }
    for (std::size_t step = 1; step < result.timelines.size(); ++step)
        for (std::size_t rank = 0; rank < result.timelines[step].spans.size(); ++rank) {
            const std::vector<schedule::Span>& spans = result.timelines[step].spans[rank];
            double time = 0;
            for (std::size_t i = 0; i < spans.size(); ++i)
                if (list.instructions[spans[i].instruction].kind == schedule::InstructionKind::optimizer_step) time += result.on_core[step][rank][i].value;
            updates.push_back(time);
        }
    profile.update_bandwidth = core::BytesPerSecond(elements * bytes_an_element / std::max(1e-9, median(updates)));
    // Messages as large as the plan's: partial sums of a micro-batch with tensor parallelism, else buckets.
    double message = largest;
    if (plan.layout.tensor > 1)
        for (const model::Operator& op : graph.operators)
            if (op.kind == model::OperatorKind::parallel_exit) message = model::tensor_bytes(graph, op.output, context).value / 4;
    const Exchange exchange = measure_exchange(static_cast<std::size_t>(std::clamp(message, 4096.0, 4194304.0)));
    profile.link_bandwidth = exchange.bandwidth;
    profile.link_latency = exchange.latency;
    profile.product_rate = product_rate(single.layout.ranks(), 512, 9);
    return profile;
}

namespace {

void set_link(cluster::InstanceType& instance, core::BytesPerSecond bandwidth, core::Seconds latency) {
    for (cluster::Link& link : instance.links) {
        if (link.kind != cluster::LinkKind::memory) continue;
        link.bandwidth = bandwidth;
        link.efficiency = 1;
        link.latency = latency / 2.0;  // a route passes two of them
        // Each receiver copies for itself: opposite directions do not share a core.
        link.is_full_duplex = true;
    }
    cluster::prepare_routes(instance);
}

}  // namespace

void apply(const PlanProfile& profile, cluster::InstanceType& instance) {
    instance.device.measured_operators = profile.operators;
    instance.device.memory_bandwidth = profile.update_bandwidth;
    instance.device.memory_efficiency = 1;
    instance.device.peak[core::DataType::fp32] = profile.product_rate;
    instance.device.kernel_launch = core::microseconds(1);
    instance.device.host_dispatch = core::Seconds(0);
    set_link(instance, profile.link_bandwidth, profile.link_latency);
}

cluster::InstanceType profile_machine(cluster::InstanceType base, const std::string& date) {
    const cpu::Kernels& k = cpu::kernels();
    const int all = cores();
    cluster::DeviceSpec& device = base.device;
    cluster::MatrixProductCurve curve;
    double best = 0;
    // All cores at work, as in a run.
    for (const std::int64_t n : {16, 32, 64, 128, 192, 256, 384, 512, 768, 1024}) {
        const double flops = 2.0 * static_cast<double>(n * n * n);
        const int repetitions = std::clamp(static_cast<int>(3e9 / flops), 5, 2000);
        const core::FlopsPerSecond rate = product_rate(all, n, repetitions);
        curve.points.push_back({core::Flops(flops), rate});
        best = std::max(best, rate.value);
    }
    // Streams of 32 MiB an array: y += x reads two and writes one.
    constexpr std::int64_t floats = 8 << 20;
    const auto stream = [&](int workers) {
        return 12.0 * floats / median_with_all_busy(workers, 9, [&](int) {
                   auto x = std::make_shared<std::vector<float>>(floats, 1.0f), y = std::make_shared<std::vector<float>>(floats, 1.0f);
                   return [=, &k] { k.accumulate(floats, x->data(), y->data()); };
               });
    };
    const double alone = stream(1), together = stream(all);
    const double overhead = median_with_all_busy(all, 2000, [&](int) {
        auto x = std::make_shared<std::vector<float>>(16, 1.0f);
        return [=, &k] { k.add(16, x->data(), x->data(), x->data()); };
    });
    const Exchange exchange = measure_exchange(1 << 20);

    curve.compute_efficiency = 1;
    curve.memory_efficiency = 1;
    curve.launch = core::Seconds(overhead);
    device.peak = {{core::DataType::fp32, core::FlopsPerSecond(best)}};
    device.matrix_product = {{core::DataType::fp32, curve}};
    device.memory_bandwidth = core::BytesPerSecond(together);
    device.memory_efficiency = 1;
    device.kernel_launch = core::Seconds(overhead);
    device.has_concurrent_streams = false;
    set_link(base, exchange.bandwidth, exchange.latency);
    base.notes.clear();
    base.notes.push_back(fmt::format("{} kernels; y += x streams at {:.1f} GB/s on one core alone, {:.1f} GB/s on each of {} at once", k.instruction_set,
                                     alone / 1e9, together / 1e9, all));
    const std::string source = fmt::format("measured by `smexec profile` on this machine, {} cores busy", all);
    for (auto& [what, provenance] : base.provenance) {
        if (what == "instance" || what.starts_with("topology") || what.starts_with("device.memory_source")) continue;
        provenance = {source, date, "measured"};
    }
    for (const char* what : {"device", "device.precision.fp32", "topology.link.memory", "link.memory"})
        if (base.provenance.contains(what)) base.provenance[what] = {source, date, "measured"};
    return base;
}

}  // namespace exec
