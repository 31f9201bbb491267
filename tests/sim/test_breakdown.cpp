// A rank's step by hand, with every kind of part at a known time.
#include <catch2/catch.hpp>

#include "sim/report/breakdown.h"
#include "tests/sim/tiny_program.h"

namespace {

using core::Seconds;
using schedule::GroupKind;
using schedule::PayloadKind;
using schedule::Stream;

schedule::Instruction collective(Stream stream, GroupKind group, PayloadKind payload) {
    schedule::Instruction i;
    i.kind = schedule::InstructionKind::collective;
    i.stream = stream;
    i.group = group;
    i.payload = payload;
    return i;
}

struct Step {
    schedule::Program program;
    sim::Durations durations;
    std::vector<std::vector<Seconds>> host;

    Step(schedule::ParallelLayout layout, tiny::Builder builder, std::vector<double> times,
         std::vector<double> host_times = {}) {
        program.plan.layout = layout;
        program.stages.resize(1);
        program.classes.push_back(builder.list);
        program.class_of_rank.assign(static_cast<std::size_t>(layout.ranks()), 0);
        host_times.resize(times.size(), 0.0);
        durations.of.emplace_back();
        host.emplace_back();
        for (double time : times) durations.of[0].emplace_back(time);
        for (double time : host_times) host[0].emplace_back(time);
    }
    sim::Breakdown parts(bool has_streams = true) const {
        const sim::Simulation simulation =
            sim::simulate(program, durations, {.has_concurrent_streams = has_streams});
        const sim::Breakdown breakdown = sim::break_down(
            program, simulation, host, sim::critical_performer(program, simulation), has_streams);
        REQUIRE(sim::sum(breakdown).value == Approx(simulation.timeline.makespan.value));
        return breakdown;
    }
};

}  // namespace

TEST_CASE("communication counts only where no compute hides it, and each kind under its own name") {
    tiny::Builder b;
    schedule::Instruction zero;
    zero.kind = schedule::InstructionKind::zero_gradients;
    b.add(zero);  // 0: 0 - 0.5
    const auto gathered =
        b.add(collective(Stream::data, GroupKind::data, PayloadKind::parameter));                  // 1: 0 - 2
    const auto forward = b.add(tiny::compute(schedule::ComputePhase::forward, 0, 0), {gathered});  // 2: 2 - 5
    const auto exit =
        b.add(collective(Stream::tensor, GroupKind::tensor, PayloadKind::activation), {forward});  // 3: 5 - 6
    const auto again = b.add(tiny::compute(schedule::ComputePhase::recompute, 0, 0), {exit});      // 4: 6 - 9
    const auto backward = b.add(tiny::compute(schedule::ComputePhase::backward, 0, 0), {again});  // 5: 9 - 15
    const auto reduced = b.add(collective(Stream::data, GroupKind::data, PayloadKind::parameter_gradient),
                               {again});  // 6: 9 - 13, hidden
    const auto last = b.add(collective(Stream::data, GroupKind::data, PayloadKind::parameter_gradient),
                            {reduced, backward});  // 7: 15 - 17
    schedule::Instruction step;
    step.kind = schedule::InstructionKind::optimizer_step;
    b.add(step, {last});  // 8: 17 - 18
    const sim::Breakdown parts = Step({2, 2, 1, "PDT"}, b, {0.5, 2, 3, 1, 3, 6, 4, 2, 1}).parts();
    REQUIRE(parts.compute.value == Approx(3 + 6));
    REQUIRE(parts.recompute.value == Approx(3));
    REQUIRE(parts.sharding.value == Approx(1.5));  // the first half second hides behind zeroing
    REQUIRE(parts.tensor_parallel.value == Approx(1));
    REQUIRE(parts.data_parallel.value == Approx(2));
    REQUIRE(parts.optimizer.value == Approx(0.5 + 1));
    REQUIRE(parts.bubble.value == Approx(0).margin(1e-12));
}

TEST_CASE("time the device waits for the host to dispatch is host, not compute") {
    tiny::Builder b;
    b.add(tiny::compute(schedule::ComputePhase::forward, 0, 0));
    b.add(tiny::compute(schedule::ComputePhase::backward, 0, 0));
    const sim::Breakdown parts = Step({1, 1, 1, "PDT"}, b, {5, 7}, {2, 0}).parts();
    REQUIRE(parts.compute.value == Approx(3 + 7));
    REQUIRE(parts.host.value == Approx(2));
}

TEST_CASE("a receive is pipeline time while data moves and bubble while its sender works") {
    // Two stages, one micro-batch, F = 1, B = 2, transfers 0.5: stage 0 ends the step. It waits from 1 to 5:
    // of that only the last half second moves data to it.
    const schedule::Program program = tiny::pipeline(2, 1, tiny::Order::all_forward_first);
    const sim::Durations durations = sim::durations_of(
        program,
        {{Seconds(1), Seconds(1)}, {Seconds(1), Seconds(1)}, {Seconds(1), Seconds(1)}, Seconds(0.5)});
    std::vector<std::vector<Seconds>> host;
    for (const auto& of : durations.of) host.emplace_back(of.size());
    const sim::Simulation simulation = sim::simulate(program, durations);
    REQUIRE(simulation.timeline.makespan.value == 7.0);
    REQUIRE(sim::critical_performer(program, simulation) == 0);
    const sim::Breakdown parts = sim::break_down(program, simulation, host, 0, true);
    REQUIRE(parts.compute.value == Approx(3));
    REQUIRE(parts.pipeline.value == Approx(0.5));
    REQUIRE(parts.bubble.value == Approx(3.5));
}

TEST_CASE("without streams a send costs its rank time of its own") {
    const schedule::Program program = tiny::pipeline(2, 1, tiny::Order::all_forward_first);
    const sim::Durations durations = sim::durations_of(
        program,
        {{Seconds(1), Seconds(1)}, {Seconds(1), Seconds(1)}, {Seconds(1), Seconds(1)}, Seconds(0.5)});
    std::vector<std::vector<Seconds>> host;
    for (const auto& of : durations.of) host.emplace_back(of.size());
    const sim::Simulation simulation = sim::simulate(program, durations, {.has_concurrent_streams = false});
    const sim::Breakdown parts = sim::break_down(program, simulation, host, 0, false);
    REQUIRE(parts.pipeline.value == Approx(0.5 + 0.5));  // its send, and the receive while data moves
    REQUIRE(sim::sum(parts).value == Approx(7.0));
}

TEST_CASE("the critical rank is the one that ends the step, among equals the busiest") {
    schedule::Program program;
    program.plan.layout = {1, 1, 3, "PDT"};
    program.stages.resize(3);
    sim::Durations durations;
    const double work[] = {4, 6, 2};
    for (int p = 0; p < 3; ++p) {
        tiny::Builder list;
        list.list.pipeline = p;
        const auto before = list.add(tiny::compute(schedule::ComputePhase::backward, p, 0));
        list.add(collective(Stream::data, GroupKind::world, PayloadKind::loss), {before});
        durations.of.push_back({Seconds(work[p]), Seconds(1)});
        program.classes.push_back(list.list);
        program.class_of_rank.push_back(p);
    }
    const sim::Simulation simulation = sim::simulate(program, durations);
    REQUIRE(simulation.timeline.makespan.value == 7.0);
    for (core::Seconds end : simulation.end) REQUIRE(end.value == 7.0);
    REQUIRE(sim::critical_performer(program, simulation) == 1);
}
