#include "exec/profile/profile.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include <fmt/core.h>

#include "cluster/build_topology.h"
#include "exec/cpu/cores.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/profile/profiled_program.h"
#include "exec/profile/traffic.h"
#include "exec/runtime/rank_executor.h"
#include "exec/runtime/rank_threads.h"
#include "exec/runtime/run.h"
#include "exec/runtime/solo_run.h"
#include "exec/transport/collective.h"
#include "model/operators/cost.h"

namespace exec {

namespace {

double seconds_of(const std::function<void()>& work) {
    const Clock::time_point start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[static_cast<std::size_t>(share * (values.size() - 1))];
}

// Differences of measured times may be zero or below: rates are of this time (a clock's tick) at least.
constexpr double shortest_seconds = 1e-9;

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

int cores() { return cpu::available_cores(); }

// Every worker repeats its work while all others do theirs; the median of all.
double median_with_all_busy(int workers, int repetitions,
                            const std::function<std::function<void()>(int worker)>& make_work) {
    std::vector<std::vector<double>> times(workers);
    std::barrier all(workers);
    std::atomic<int> begun{0};
    std::atomic<bool> is_given_up{false};
    const auto repeat = [&](int w) {
        // Only when all are there may one wait for the others.
        for (++begun; begun < workers && !is_given_up;) std::this_thread::yield();
        if (begun < workers) return;
        const cpu::StayOnCore stay(w, workers);
        const std::function<void()> work = make_work(w);
        work();
        for (int i = 0; i < repetitions; ++i) {
            all.arrive_and_wait();
            times[w].push_back(seconds_of(work));
        }
    };
    run_in_threads(workers, repeat, [&](const std::string&) { is_given_up = true; });
    std::vector<double> together;
    for (const auto& own : times) together.insert(together.end(), own.begin(), own.end());
    return median(together);
}

// y = x w^T, the shape of a linear layer, n x n x n.
core::FlopsPerSecond product_rate(int workers, std::int64_t n, int repetitions) {
    const cpu::Kernels& k = cpu::kernels();
    const double time = median_with_all_busy(workers, repetitions, [&](int) {
        const std::size_t count = n * n;
        auto a = std::make_shared<std::vector<float>>(count, 0.5f),
             b = std::make_shared<std::vector<float>>(count, 0.25f),
             c = std::make_shared<std::vector<float>>(count);
        return
            [=, &k] { k.product(false, true, n, n, n, 1, a->data(), n, b->data(), n, c->data(), n, false); };
    });
    return core::FlopsPerSecond(2.0 * (n * n * n) / time);
}

// Both ranks of a network, each on a core of its own. What they exchange must outlive this: when one fails,
// the other may be reading it.
void run_two(cpu::ThreadNetwork& network, const std::function<void(Communicator&)>& rank_work) {
    std::exception_ptr failures[2];
    const auto work = [&](int rank) {
        try {
            const cpu::StayOnCore stay(rank, 2);
            rank_work(*network.communicator(rank));
        } catch (const std::exception& failure) {
            failures[rank] = std::current_exception();
            network.stop(failure.what());
        }
    };
    run_in_threads(2, work, [&](const std::string& reason) { network.stop(reason); });
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

struct Exchange {
    core::BytesPerSecond bandwidth;
    core::Seconds latency;
};

// Two ranks perform ring all-reduces, small and large: t = 2 (latency + bytes / 2 / bandwidth).
Exchange measure_exchange(std::size_t large_floats) {
    if (cores() < 2) return {core::gigabytes_per_second(4), core::microseconds(20)};
    const schedule::Rounds rounds =
        schedule::find_collective_algorithm("ring")->rounds(schedule::CollectiveKind::all_reduce, 2, 2);
    const auto time_of = [&](std::size_t floats, int repetitions) {
        cpu::ThreadNetwork network(2, core::seconds(60), true);
        std::vector<double> times;
        std::vector<float> of_rank[2];
        const auto rank_work = [&](Communicator& communicator) {
            std::vector<float>& data = of_rank[communicator.rank()];
            data.resize(floats);
            for (int i = 0; i < repetitions + 2; ++i) {
                std::fill(data.begin(), data.end(),
                          1.0f);  // as fresh in its own cache as a gradient just computed
                float token = 0;
                exec::perform(communicator, rounds, {0, 1}, {&token, 1}, 100);
                const double taken =
                    seconds_of([&] { exec::perform(communicator, rounds, {0, 1}, data, 200); });
                if (communicator.rank() == 0 && i >= 2) times.push_back(taken);
            }
        };
        run_two(network, rank_work);
        // A disturbed exchange waits for two threads: the lower quartile is what exchange takes, the rest is
        // waiting.
        return quantile(times, 0.25);
    };
    const double small = time_of(2, 200), large = time_of(large_floats, 15);
    const double bytes = static_cast<double>(large_floats) * 4;
    return {core::BytesPerSecond(bytes / std::max(shortest_seconds, large - small)),
            core::Seconds(small / 2)};
}

// Parameters in shards come bucket by bucket, each from where it lay since the step before: two copies and no
// warm cache. A micro-batch gathers a bucket twice and reduces it once: t = latency + bytes / 2 / bandwidth
// on average.
core::BytesPerSecond measure_shard_exchange(const schedule::RankProgram& list, core::Seconds latency) {
    if (cores() < 2) return core::gigabytes_per_second(4);
    const schedule::CollectiveAlgorithm& ring = *schedule::find_collective_algorithm("ring");
    const schedule::Rounds gather = ring.rounds(schedule::CollectiveKind::all_gather, 2, 2),
                           reduce = ring.rounds(schedule::CollectiveKind::reduce_scatter, 2, 2);
    constexpr int repetitions = 9;
    std::vector<std::size_t> pieces;
    double bytes = 0;
    for (const schedule::ParameterBucket& bucket : list.buckets) {
        pieces.push_back((static_cast<std::size_t>(bucket.padded_elements) + 1) / 2);
        bytes += 2 * pieces.back() * sizeof(float);
    }
    cpu::ThreadNetwork network(2, core::seconds(60), true);
    std::vector<double> times;
    struct Arrays {
        std::vector<std::vector<float>> parameters, gradients, own, sums;
    };
    Arrays of_rank[2];
    const auto rank_work = [&](Communicator& communicator) {
        const int rank = communicator.rank();
        std::vector<std::vector<float>>&parameters =
            of_rank[rank].parameters,  // clang 14 captures no bindings
            &gradients = of_rank[rank].gradients, &own = of_rank[rank].own, &sums = of_rank[rank].sums;
        for (const std::size_t piece : pieces) {
            own.emplace_back(piece, 1.0f);
            sums.emplace_back(piece, 1.0f);
            parameters.emplace_back(2 * piece, 1.0f);
            gradients.emplace_back(2 * piece, 1.0f);
        }
        const auto at = [rank](std::vector<float>& whole) {
            return whole.begin() + (rank * whole.size() / 2);
        };
        Tag tag = 100;
        for (int i = 0; i < repetitions; ++i) {
            double taken = 0;
            for (int pass = 0; pass < 3; ++pass)
                for (std::size_t b = 0; b < pieces.size(); ++b) {
                    float token = 0;
                    exec::perform(communicator, gather, {0, 1}, {&token, 1}, tag++);
                    taken += seconds_of([&] {
                        if (pass < 2) {
                            std::copy(own[b].begin(), own[b].end(), at(parameters[b]));
                            exec::perform(communicator, gather, {0, 1}, parameters[b], tag++);
                        } else {
                            exec::perform(communicator, reduce, {0, 1}, gradients[b], tag++);
                            cpu::kernels().accumulate(std::ssize(sums[b]), &*at(gradients[b]),
                                                      sums[b].data());
                        }
                    });
                }
            if (rank == 0 && i > 0) times.push_back(taken);
        }
    };
    run_two(network, rank_work);
    const double transfers = 3 * static_cast<double>(pieces.size());
    return core::BytesPerSecond(
        3 * bytes / 2 / std::max(shortest_seconds, quantile(times, 0.25) - transfers * latency.value));
}

// One rank of every class, and more of the same until every core is busy that the plan keeps busy; in groups
// that work at the same time.
std::vector<std::vector<int>> ranks_to_profile(const schedule::Program& program) {
    const std::size_t workers = std::max(1, std::min(program.plan.layout.ranks(), cores()));
    std::vector<int> chosen, others;
    std::vector<char> is_known(program.classes.size(), 0);
    for (int rank = 0; rank < program.plan.layout.ranks(); ++rank) {
        char& known = is_known[program.class_of_rank[rank]];
        (known ? others : chosen).push_back(rank);
        known = 1;
    }
    std::sort(others.begin(), others.end());
    for (std::size_t i = 0; chosen.size() % workers != 0; ++i)
        chosen.push_back(i < others.size() ? others[i] : chosen[i]);
    std::vector<std::vector<int>> groups;
    for (std::size_t i = 0; i < chosen.size(); i += workers)
        groups.emplace_back(chosen.begin() + i, chosen.begin() + (i + workers));
    return groups;
}

OperatorPass pass_of(const OperatorSample& sample) { return {sample.op, sample.segment, sample.phase}; }

// Elements that an optimizer step updates, as the simulator counts them.
double updated_elements(const schedule::Program& program, const schedule::RankProgram& list,
                        const schedule::Instruction& step) {
    double elements = 0;
    for (std::size_t b = 0; b < list.buckets.size(); ++b) {
        if (step.bucket && std::cmp_not_equal(*step.bucket, b)) continue;
        const schedule::ParameterBucket& bucket = list.buckets[b];
        elements += program.plan.sharding == schedule::Sharding::none
                        ? bucket.elements
                        : (bucket.padded_elements / bucket.pieces);
    }
    return elements;
}

// What a rank does around a collective, in a step: keys put together before they are sent and in the order of
// the sequence once they are there, gradients added up.
struct HandledTraffic {
    double seconds = 0, bytes = 0;  // bytes: that leave the rank
};
HandledTraffic handled_traffic(const schedule::Program& program, int rank,
                               const std::vector<InstructionTime>& step) {
    HandledTraffic traffic;
    const schedule::RankProgram& list = program.classes[program.class_of_rank[rank]];
    for (const InstructionTime& time : step) {
        const schedule::Instruction& instruction = list.instructions[time.instruction];
        if (instruction.kind != schedule::InstructionKind::collective) continue;
        traffic.seconds += time.on_core.value;
        traffic.bytes +=
            bytes_sent(instruction, schedule::members_of(program, rank, instruction).size()).value;
    }
    return traffic;
}

}  // namespace

PlanProfile profile_plan(const schedule::Program& program, const model::ModelGraph& graph,
                         std::shared_ptr<const DataSource> data, bool times_exchanges) {
    const schedule::Plan& plan = program.plan;
    const std::vector<std::vector<int>> groups = ranks_to_profile(program);
    RunOptions options;
    options.times_operators = true;
    options.probes_speed = true;

    std::map<OperatorPass, std::vector<double>> by_operator;
    std::map<std::pair<int, std::int32_t>, std::vector<const OperatorSample*>> by_step;  // [rank, step]
    std::vector<double> updates, probes, handling;
    std::map<std::string, std::vector<double>> handling_of;  // by exchange
    double largest = 0;
    const double bytes_an_element =
        4 + 2 * schedule::state_bytes_per_parameter(plan.optimizer).value + 8 +
        (schedule::needs_update_norms(plan.optimizer) ? 8 : 0);  // as the simulator counts them
    std::vector<std::vector<RankRecord>> measured;
    for (const std::vector<int>& ranks : groups) {
        // Enough steps for a median, in about `profiling_seconds` for all ranks.
        options.steps = 2;
        const std::vector<RankRecord> first = run_alone(program, graph, data, options, ranks);
        constexpr double profiling_seconds = 1.5, shortest_step_seconds = 1e-4;
        constexpr int least_steps = 4, most_steps = 60;
        double step_time = shortest_step_seconds;
        for (const RankRecord& record : first) step_time = std::max(step_time, record.step_computing.back());
        options.steps = std::clamp(static_cast<int>(profiling_seconds / groups.size() / step_time),
                                   least_steps, most_steps);
        measured.push_back(run_alone(program, graph, data, options, ranks));
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            const RankRecord& record = measured.back()[r];
            const schedule::RankProgram& list = program.classes[program.class_of_rank[ranks[r]]];
            for (const OperatorSample& sample : record.operator_samples) {
                if (sample.step == 0) continue;
                // What other processes took is not the operator's.
                by_operator[pass_of(sample)].push_back(sample.on_core.value);
                by_step[{ranks[r], sample.step}].push_back(&sample);
            }
            for (std::size_t step = 1; step < record.steps.size(); ++step) {
                double time = 0, bytes = 0;
                for (const InstructionTime& instruction : record.steps[step]) {
                    const schedule::Instruction& what = list.instructions[instruction.instruction];
                    const bool is_step = what.kind == schedule::InstructionKind::optimizer_step;
                    if (!is_step && what.kind != schedule::InstructionKind::update_norm) continue;
                    time += instruction.on_core.value;
                    if (is_step) bytes += bytes_an_element * updated_elements(program, list, what);
                }
                if (bytes > 0) updates.push_back(time / bytes);
                const HandledTraffic traffic = handled_traffic(program, ranks[r], record.steps[step]);
                if (traffic.bytes > 0) handling.push_back(traffic.seconds / traffic.bytes);
                std::map<std::string, std::pair<double, int>> handled;
                for (const InstructionTime& instruction : record.steps[step]) {
                    const schedule::Instruction& what = list.instructions[instruction.instruction];
                    if (what.kind != schedule::InstructionKind::collective) continue;
                    auto& [time, count] = handled[exchange_signature(program, ranks[r], what)];
                    time += instruction.on_core.value;
                    ++count;
                }
                for (const auto& [signature, sum] : handled)
                    handling_of[signature].push_back(sum.first / sum.second);
            }
            probes.insert(probes.end(), record.probes.begin(), record.probes.end());
        }
    }
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::ParameterBucket& bucket : list.buckets)
            largest = std::max(largest, static_cast<double>(bucket.elements));

    // Medians of short operators leave out what interrupts a rank's own work (the system, page faults). So
    // the medians tell how a step divides among operators, and the median step how long all of them take.
    OperatorTimes typical;
    for (auto& [key, times] : by_operator) typical[key] = median(times);
    std::vector<double> ratios;
    for (const auto& [step, samples] : by_step) {
        double taken = 0, expected = 0;
        for (const OperatorSample* sample : samples) {
            taken += sample->on_core.value;
            expected += typical[pass_of(*sample)];
        }
        if (expected > 0) ratios.push_back(taken / expected);
    }
    const double interruptions = ratios.empty() ? 1.0 : std::max(1.0, median(ratios));

    for (auto& [key, time] : typical) time *= interruptions;
    PlanProfile profile;
    if (!ratios.empty() && median(ratios) > 0) {
        profile.low_share = quantile(ratios, 0.1) / median(ratios);
        profile.high_share = quantile(ratios, 0.9) / median(ratios);
    }
    profile.probe = core::Seconds(median(probes));
    profile.operators = by_signature(program, graph, typical);

    if (!updates.empty())
        profile.update_bandwidth = core::BytesPerSecond(1 / std::max(1e-18, median(updates)));
    // Messages as large as the plan's: what ranks exchange of a micro-batch where they do (partial sums, keys
    // and values, tokens of experts), else buckets.
    double message = largest;
    for (const schedule::Instruction& instruction : program.classes[0].instructions)
        if (instruction.kind == schedule::InstructionKind::collective &&
            instruction.payload == schedule::PayloadKind::activation)
            message = instruction.bytes.value / 4;
    constexpr double least_bytes = 4096,
                     most_bytes = 4194304;  // smaller ones are all latency, larger ones slow
    Exchange exchange =
        measure_exchange(static_cast<std::size_t>(std::clamp(message, least_bytes, most_bytes)));
    for (const auto& [signature, times] : handling_of)
        profile.handling.push_back({signature, core::Seconds(median(times))});
    const bool gathers_parameters = plan.shards(schedule::Sharding::parameters) && plan.layout.tensor == 1;
    if (times_exchanges && !gathers_parameters) profile.exchanges = time_exchanges_of_threads(program);
    if (gathers_parameters) exchange.bandwidth = measure_shard_exchange(program.classes[0], exchange.latency);
    else if (!handling.empty())
        exchange.bandwidth = core::BytesPerSecond(1 / (1 / exchange.bandwidth.value + median(handling)));
    profile.link_bandwidth = exchange.bandwidth;
    profile.link_latency = exchange.latency;
    profile.product_rate = product_rate(std::min(plan.layout.ranks(), cores()), 512, 9);
    return profile;
}

void apply(const PlanProfile& profile, cluster::InstanceType& instance) {
    instance.device.measured_operators = profile.operators;
    std::map<std::string, core::Seconds> around;
    for (const MeasuredExchange& one : profile.handling) around[one.signature] = one.time;
    for (const MeasuredExchange& one : profile.exchanges)
        instance.device.measured_operators.push_back(
            {one.signature, one.time + around[one.signature], {}, {}});
    if (profile.update_bandwidth.value > 0) {
        instance.device.memory_bandwidth = profile.update_bandwidth;
        instance.device.memory_efficiency = 1;
    }
    instance.device.peak[core::DataType::fp32] = profile.product_rate;
    for (const core::DataType emulated : {core::DataType::bf16, core::DataType::fp16, core::DataType::fp8})
        if (instance.device.peak.contains(emulated))
            instance.device.peak[emulated] = profile.product_rate;  // computed in fp32
    instance.device.kernel_launch = core::microseconds(1);
    instance.device.host_dispatch = core::Seconds(0);
    cluster::set_memory_links(instance, {profile.link_bandwidth, profile.link_latency});
}

cluster::InstanceType profile_machine(cluster::InstanceType base, const std::string& date) {
    const cpu::Kernels& k = cpu::kernels();
    const int all = cores();
    cluster::DeviceSpec& device = base.device;
    cluster::MatrixProductCurve curve;
    double best = 0;
    // All cores at work, as in a run.
    for (const std::int64_t n : {16, 32, 64, 128, 192, 256, 384, 512, 768, 1024}) {
        const double flops = 2.0 * (n * n * n);
        constexpr double flops_a_size = 3e9;  // some tenths of a second on one core
        const int repetitions = std::clamp(static_cast<int>(flops_a_size / flops), 5, 2000);
        const core::FlopsPerSecond rate = product_rate(all, n, repetitions);
        curve.points.push_back({core::Flops(flops), rate});
        best = std::max(best, rate.value);
    }
    // Streams of 32 MiB an array: y += x reads two and writes one.
    constexpr std::int64_t floats = 8 << 20;
    const auto stream = [&](int workers) {
        return 12.0 * floats / median_with_all_busy(workers, 9, [&](int) {
                   auto x = std::make_shared<std::vector<float>>(floats, 1.0f),
                        y = std::make_shared<std::vector<float>>(floats, 1.0f);
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
    base.transports = {{"threads", {exchange.bandwidth, exchange.latency}}};
    cluster::set_memory_links(base, base.transports.at("threads"));
    base.provenance["transport.threads"] = {
        "measured by `smexec profile` on this machine: ring all-reduces of two threads, 8 B and 4 MiB", date,
        "measured"};
    base.notes.clear();
    base.notes.push_back(fmt::format(
        "{} kernels; y += x streams at {:.1f} GB/s on one core alone, {:.1f} GB/s on each of {} at once",
        k.instruction_set, alone / 1e9, together / 1e9, all));
    const std::string source =
        fmt::format("measured by `smexec profile` on this machine, {} cores busy", all);
    for (auto& [what, provenance] : base.provenance) {
        if (what == "instance" || what.starts_with("topology") || what.starts_with("device.memory_source"))
            continue;
        provenance = {source, date, "measured"};
    }
    for (const char* what : {"device", "device.precision.fp32", "topology.link.memory", "link.memory"})
        if (base.provenance.contains(what)) base.provenance[what] = {source, date, "measured"};
    return base;
}

}  // namespace exec
