#include <algorithm>
#include <catch2/catch.hpp>

#include "core/errors.h"
#include "sim/engine/simulate.h"
#include "tests/sim/tiny_program.h"

namespace {

using core::Seconds;
using tiny::Order;

sim::StageTimes equal_stages(int stages, double forward, double backward, double transfer = 0) {
    const auto n = static_cast<std::size_t>(stages);
    return {std::vector<Seconds>(n, Seconds(forward)), std::vector<Seconds>(n, Seconds(backward / 2)),
            std::vector<Seconds>(n, Seconds(backward / 2)), Seconds(transfer)};
}

sim::Simulation run(const schedule::Program& program, const sim::StageTimes& times,
                    sim::SimulateOptions options = {}) {
    return sim::simulate(program, sim::durations_of(program, times), options);
}

}  // namespace

TEST_CASE(
    "equal stages and free communication take (m + p - 1)(F + B), serial or with streams, folded or not") {
    for (Order order : {Order::all_forward_first, Order::one_forward_one_backward})
        for (int p = 1; p <= 6; ++p)
            for (int m : {1, 2, 3, 5, 8, 13})
                for (bool has_streams : {true, false})
                    for (bool is_folded : {true, false}) {
                        const schedule::Program program = tiny::pipeline(p, m, order, 2, 2);
                        const sim::Simulation result =
                            run(program, equal_stages(p, 1, 2),
                                {.has_concurrent_streams = has_streams, .is_folded = is_folded});
                        REQUIRE(result.timeline.makespan.value == (m + p - 1) * 3.0);
                        REQUIRE(result.timeline.spans.size() ==
                                static_cast<std::size_t>(is_folded ? p : 4 * p));
                    }
}

TEST_CASE("activations in flight peak at m when all forwards come first and at min(m, p - s) in 1F1B") {
    for (int p = 1; p <= 6; ++p)
        for (int m : {1, 2, 3, 5, 8, 13}) {
            const sim::Simulation first =
                run(tiny::pipeline(p, m, Order::all_forward_first), equal_stages(p, 1, 2));
            const sim::Simulation alternating =
                run(tiny::pipeline(p, m, Order::one_forward_one_backward), equal_stages(p, 1, 2));
            for (int s = 0; s < p; ++s) {
                REQUIRE(first.memory.peak[static_cast<std::size_t>(s)].value == 10 + m);
                REQUIRE(alternating.memory.peak[static_cast<std::size_t>(s)].value ==
                        10 + std::min(m, p - s));
            }
        }
}

TEST_CASE(
    "memory over time is never below the persistent level, ends at it, and its samples contain the peak") {
    const sim::Simulation result =
        run(tiny::pipeline(4, 7, Order::one_forward_one_backward), equal_stages(4, 1, 2, 0.25));
    for (std::size_t p = 0; p < 4; ++p) {
        double most = 0, last_time = -1;
        for (const schedule::MemorySample& sample : result.memory.samples[p]) {
            double total = 0;
            for (core::Bytes bytes : sample.bytes) {
                REQUIRE(bytes.value >= 0);
                total += bytes.value;
            }
            REQUIRE(total >= 10);
            REQUIRE(sample.time.value > last_time);
            last_time = sample.time.value;
            most = std::max(most, total);
        }
        double end = 0;
        for (core::Bytes bytes : result.memory.samples[p].back().bytes) end += bytes.value;
        REQUIRE(end == 10);
        REQUIRE(most == result.memory.peak[p].value);
    }
}

TEST_CASE("busy and idle time of every rank add up to the makespan, and nothing overlaps on one stream") {
    const schedule::Program program = tiny::pipeline(3, 6, Order::one_forward_one_backward);
    const sim::Simulation result = run(program, equal_stages(3, 1.5, 2.5, 0.5));
    for (std::size_t c = 0; c < 3; ++c) {
        double busy = 0, idle = 0, now = 0;
        for (const schedule::Span& span : result.timeline.spans[c]) {
            if (program.classes[c].instructions[span.instruction].stream != schedule::Stream::compute)
                continue;
            REQUIRE(span.start.value >= now);
            idle += span.start.value - now;
            busy += span.end.value - span.start.value;
            now = span.end.value;
        }
        idle += result.timeline.makespan.value - now;
        REQUIRE(busy == Approx(6 * 4.0));
        REQUIRE(busy + idle == Approx(result.timeline.makespan.value));
    }
}

TEST_CASE("a transfer delays the next stage by its duration once it is on the critical path") {
    // One micro-batch over p stages: p (F + B) and 2 (p - 1) transfers, none of them hidden.
    for (int p = 1; p <= 5; ++p)
        REQUIRE(run(tiny::pipeline(p, 1, Order::all_forward_first), equal_stages(p, 1, 2, 0.5))
                    .timeline.makespan.value == p * 3.0 + 2 * (p - 1) * 0.5);
}

TEST_CASE("a send hides behind compute with streams and adds to it without") {
    // Stage 0 sends two activations while it computes the second forward. With streams its own work is 2 F +
    // 2 B plus waiting; without, each send costs it 0.5.
    const schedule::Program program = tiny::pipeline(2, 2, Order::all_forward_first);
    const sim::Simulation with = run(program, equal_stages(2, 1, 1, 0.5), {.has_concurrent_streams = true});
    const sim::Simulation without =
        run(program, equal_stages(2, 1, 1, 0.5), {.has_concurrent_streams = false});
    // With streams: F0 at [0,1], F1 at [1,2]; activations arrive at 1.5 and 2.5; stage 1: F 1.5-2.5,
    // F 2.5-3.5, B 3.5-4.5, B 4.5-5.5; gradients arrive at 5 and 6; B 5-6, B 6-7.
    REQUIRE(with.timeline.makespan.value == 7.0);
    // Without: F0 0-1, send 1-1.5, F1 1.5-2.5, send 2.5-3; stage 1: F 1.5-2.5, F 3-4, B 4-5, send 5-5.5,
    // B 5.5-6.5, send 6.5-7; stage 0: B 5.5-6.5, B 7-8.
    REQUIRE(without.timeline.makespan.value == 8.0);
}

TEST_CASE("streams of one rank run side by side and meet at after-edges") {
    schedule::Program program;
    tiny::Builder b;
    schedule::Instruction reduce;
    reduce.kind = schedule::InstructionKind::collective;
    reduce.stream = schedule::Stream::data;
    reduce.group = schedule::GroupKind::data;
    const std::uint32_t first = b.add(tiny::compute(schedule::ComputePhase::backward, 0, 0));
    const std::uint32_t reduced = b.add(reduce, {first});
    const std::uint32_t second = b.add(tiny::compute(schedule::ComputePhase::backward, 0, 0));
    const std::uint32_t reduced_too = b.add(reduce, {second});
    schedule::Instruction step;
    step.kind = schedule::InstructionKind::optimizer_step;
    b.add(step, {reduced, reduced_too});
    program.classes.push_back(b.list);
    program.class_of_rank = {0, 0};
    program.plan.layout = {2, 1, 1, "PDT"};
    program.stages.resize(1);
    const sim::Durations durations{{{Seconds(2), Seconds(3), Seconds(1), Seconds(4), Seconds(0.5)}}};
    // Reductions at [2, 5] and [5, 9] (one stream), the second compute at [2, 3], the step at [9, 9.5].
    // Serially the sum.
    REQUIRE(sim::simulate(program, durations).timeline.makespan.value == 9.5);
    REQUIRE(sim::simulate(program, durations, {.has_concurrent_streams = false}).timeline.makespan.value ==
            10.5);
    REQUIRE(sim::simulate(program, durations, {.is_folded = false}).timeline.makespan.value == 9.5);
}

TEST_CASE("a collective over pipeline ranks starts when its last member arrives") {
    schedule::Program program;
    program.plan.layout = {1, 1, 3, "PDT"};
    program.stages.resize(3);
    schedule::Instruction together;
    together.kind = schedule::InstructionKind::collective;
    together.stream = schedule::Stream::data;
    together.group = schedule::GroupKind::tied_stages;  // first and last
    sim::Durations durations;
    for (int p = 0; p < 3; ++p) {
        tiny::Builder b;
        b.list.pipeline = p;
        const std::uint32_t before = b.add(tiny::compute(schedule::ComputePhase::backward, p, 0));
        durations.of.push_back({Seconds(1 + p)});
        if (p != 1) {
            b.add(together, {before});
            durations.of.back().push_back(Seconds(0.5));
        }
        program.classes.push_back(b.list);
        program.class_of_rank.push_back(p);
    }
    const sim::Simulation result = sim::simulate(program, durations);
    REQUIRE(result.timeline.spans[0][1].start.value == 1.0);
    REQUIRE(result.active_from[0][1].value == 3.0);
    REQUIRE(result.timeline.spans[0][1].end.value == 3.5);
    REQUIRE(result.timeline.spans[2][1].end.value == 3.5);
    REQUIRE(result.end[1].value == 2.0);
}

TEST_CASE("a receive whose send never comes is a broken promise, not a hang") {
    schedule::Program program = tiny::pipeline(2, 1, Order::all_forward_first);
    program.classes[0].instructions.erase(program.classes[0].instructions.begin() +
                                          1);  // the only send of stage 0
    program.classes[0].instructions.resize(1);
    REQUIRE_THROWS_AS(run(program, equal_stages(2, 1, 1)), core::InternalError);
}

TEST_CASE("two simulations of one program give the same spans to the bit") {
    const schedule::Program program = tiny::pipeline(5, 11, Order::one_forward_one_backward, 2, 1);
    sim::StageTimes times = equal_stages(5, 0.1, 0.3, 0.07);
    times.forward[2] = Seconds(0.123456789);
    const sim::Simulation a = run(program, times), b = run(program, times),
                          unfolded = run(program, times, {.is_folded = false});
    REQUIRE(a.timeline.makespan.value == unfolded.timeline.makespan.value);
    for (std::size_t c = 0; c < a.timeline.spans.size(); ++c)
        for (std::size_t i = 0; i < a.timeline.spans[c].size(); ++i) {
            REQUIRE(a.timeline.spans[c][i].start.value == b.timeline.spans[c][i].start.value);
            REQUIRE(a.timeline.spans[c][i].end.value == b.timeline.spans[c][i].end.value);
        }
}
